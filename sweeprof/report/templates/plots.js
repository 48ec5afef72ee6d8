"use strict";
for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
  draw(document.getElementById(`plot-${figure.key}`), figure);
}
