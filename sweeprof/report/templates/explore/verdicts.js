// Two rows side by side, by the rules of sweeprof/results/verdicts.py and compare.py; a test holds them against each other.
const MOST_ROUNDS = 1000;

const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;
const variance = (values) => {
  const centre = mean(values);
  return sum(values.map((value) => (value - centre) ** 2)) / (values.length - 1);
};

// Half the width of the interval of the logarithm: of paired rounds one variance, of unpaired ones two (Welch, Satterthwaite).
const halfWidth = (variances, counts) => {
  const parts = variances.map((value, side) => value / counts[side]);
  const spread = sum(parts);
  if (spread === 0) return 0;
  const freedom = parts.length === 1 ? counts[0] - 1 : spread ** 2 / sum(parts.map((part, side) => part ** 2 / (counts[side] - 1)));
  return tQuantile(freedom) * Math.sqrt(spread);
};

const variancesOf = (own, theirs, paired) => (paired ? [variance(own.map((value, round) => value - theirs[round]))] : [variance(own), variance(theirs)]);

// About how many rounds have an interval that does not cross the threshold; null: more than anybody measures.
const roundsToSettle = (own, theirs, threshold, paired) => {
  const centre = mean(own) - mean(theirs);
  const margin = Math.min(Math.abs(centre - Math.log(1 - threshold)), Math.abs(centre - Math.log(1 + threshold)));
  const variances = variancesOf(own, theirs, paired);
  const settles = (rounds) => halfWidth(variances, variances.map(() => rounds)) < margin;
  if (!settles(MOST_ROUNDS)) return null;
  let low = 2, high = MOST_ROUNDS;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    [low, high] = settles(middle) ? [low, middle] : [middle + 1, high];
  }
  return low;
};

const called = (low, high, threshold, better) => {
  if (1 - threshold < low && high < 1 + threshold) return ["same", "interval_within_threshold"];
  if (!(high < 1 - threshold || low > 1 + threshold)) return ["unclear", "interval_crosses_threshold"];
  if (better === null) return ["unclear", "neither_is_better"];
  return [(high < 1) === (better === "lower") ? "better" : "worse", "interval_beyond_threshold"];
};

const exactly = (ratio, own, theirs, better) => {
  if (better === null) return { ratio };
  if (own === theirs) return { ratio, verdict: "same", reason: "equal" };
  return { ratio, verdict: (own < theirs) === (better === "lower") ? "better" : "worse", reason: "unequal" };
};

// Only rows whose settings were not as requested have this field: they are comparable with nothing.
const DEVIATION = "settings in effect";

// How two rows came to be compared: in which fields their environments differ, and which rounds were not run in turn.
const meetingOf = (data, row, base) => {
  const own = data.environments[row.env] ?? {}, theirs = data.environments[base.env] ?? {};
  const differs = Object.keys(own).filter((field) => field in theirs && field !== DEVIATION && own[field] !== theirs[field]);
  if (DEVIATION in own || DEVIATION in theirs) differs.push(DEVIATION);
  const apart = new Set();
  let pairs = 0;
  (row.sessions ?? []).forEach((session, round) => {
    const other = base.sessions?.[round] ?? null;
    if (session === null || other === null) return;
    if (session === other) pairs += 1;
    else apart.add(round);
  });
  const scattered = pairs < data.min_rounds && data.min_rounds <= pairs + apart.size;
  return { together: !differs.length && !scattered, differs, apart };
};

const isCalibrated = (row, base, place) => Boolean(row.kernel === base.kernel && row.calibrated?.[place] && base.calibrated?.[place]);

const measuredRounds = (rounds) => (rounds ?? []).filter((estimate) => estimate !== null);
// Whether the interval of a value is of the samples of a single process, and not over rounds.
const isWithinProcess = (row, place) => measuredRounds(row.rounds[place]).length < 2;
const sidesOf = (data, row, base, place, { together, apart }) => {
  if (!together) {
    const of = isCalibrated(row, base, place) ? "calibrated" : "rounds";
    return [measuredRounds(row[of][place]), measuredRounds(base[of][place])];
  }
  // The pairs of a duel are with the row of the same interleaved run, and with no other.
  const isDuel = data.rows[row.base] === base && row.paired?.[place];
  const own = isDuel ? row.paired[place] : row.rounds[place], theirs = base.rounds[place] ?? [];
  const common = [...own.keys()].filter((round) => own[round] !== null && (theirs[round] ?? null) !== null && !apart.has(round));
  return [common.map((round) => own[round]), common.map((round) => theirs[round])];
};

// What the row is beside the base: ratio, low, high, verdict, reason, needed(); null where there is nothing to compare.
const compared = (data, row, base, place) => {
  const own = row.values[place], theirs = base?.values[place];
  if (!own || !theirs || row === base || row.alone || base.alone) return null;
  const { better, threshold } = data.metrics[place];
  const ratio = theirs[0] === 0 ? null : own[0] / theirs[0];
  const undecided = (reason, verdict = "unclear") => ({ ratio, verdict, reason });
  if (!row.rounds[place]) {
    const uncertain = row.uncertain?.[place] ?? (base.rounds[place] ? "too_few_rounds" : base.uncertain?.[place]);
    return uncertain ? undecided(uncertain) : exactly(ratio, own[0], theirs[0], better);
  }
  const meeting = meetingOf(data, row, base);
  const bridged = isCalibrated(row, base, place);
  if (meeting.differs.some((field) => !(bridged && field === "host"))) return undecided("different_environment", "not_comparable");
  const sides = sidesOf(data, row, base, place, meeting);
  if (Math.min(sides[0].length, sides[1].length) < data.min_rounds) return undecided("too_few_rounds");
  if (threshold === null) return undecided("no_threshold");
  if (sides.flat().some((value) => !(value > 0))) return undecided("test_failed");
  const [a, b] = sides.map((values) => values.map(Math.log));
  const centre = mean(a) - mean(b);
  const half = halfWidth(variancesOf(a, b, meeting.together), [a.length, b.length]);
  const [low, high] = [Math.exp(centre - half), Math.exp(centre + half)];
  if (!Number.isFinite(high)) return undecided("test_failed");
  const [verdict, reason] = called(low, high, threshold, better);
  // Of the same rounds as the interval, which is symmetric in the logarithm.
  return { ratio: Math.exp(centre), low, high, verdict, reason, needed: () => roundsToSettle(a, b, threshold, meeting.together) };
};

// The geometric mean of ratios over rows that are ok on both sides; null where there is none.
const geometricMean = (ratios) => (ratios.length ? Math.exp(mean(ratios.map(Math.log))) : null);
