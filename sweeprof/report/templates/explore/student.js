// Student's t: what 95 % of all values lie within, for any degrees of freedom.
const logGamma = (x) => {
  // Lanczos, g = 7: fifteen digits.
  const terms = [
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905, -0.13857109526572012,
    9.9843695780195716e-6, 1.5056327351493116e-7,
  ];
  const sum = terms.reduce((total, term, place) => total + term / (x + place), 0.99999999999980993);
  const t = x + 6.5;
  return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(t) - t + Math.log(sum);
};

// The continued fraction of the incomplete beta function (Numerical Recipes, 3rd ed., section 6.4).
const betaFraction = (a, b, x) => {
  const tiny = 1e-300, bounded = (value) => (Math.abs(value) < tiny ? tiny : value);
  let c = 1, d = 1 / bounded(1 - ((a + b) * x) / (a + 1)), fraction = d;
  for (let m = 1; m < 500; m += 1) {
    const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
    const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
    let step = 1;
    for (const term of [even, odd]) {
      d = 1 / bounded(1 + term * d);
      c = bounded(1 + term / c);
      step = d * c;
      fraction *= step;
    }
    if (Math.abs(step - 1) < 1e-15) break;
  }
  return fraction;
};

const incompleteBeta = (a, b, x) => {
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x));
  return x < (a + 1) / (a + b + 2) ? (front * betaFraction(a, b, x)) / a : 1 - (front * betaFraction(b, a, 1 - x)) / b;
};

const quantiles = new Map();
const tQuantile = (freedom) => {
  if (!quantiles.has(freedom)) {
    let low = 1.9, high = 13;
    for (let step = 0; step < 60; step += 1) {
      const t = (low + high) / 2;
      const outside = incompleteBeta(freedom / 2, 0.5, freedom / (freedom + t * t));
      [low, high] = outside > 0.05 ? [t, high] : [low, t];
    }
    quantiles.set(freedom, (low + high) / 2);
  }
  return quantiles.get(freedom);
};
