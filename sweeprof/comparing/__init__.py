"""Two sweeps side by side: what ``python -m sweeprof.compare BASE NEW`` prints and answers for."""
