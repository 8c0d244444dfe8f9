/* Offsets and numbers as people read them. */

/** UTF-16 units before so many code points: the service counts these, the browser those. */
export function unitsOf(text, points) {
  let units = 0;
  for (const character of text) {
    if (points-- <= 0) break;
    units += character.length;
  }
  return units;
}

/** Bits of surprise in a natural log-probability. */
export const bitsOf = (logprob) => -logprob / Math.LN2;

/** 0 … 1 for a heat map: 16 bits are as hot as it gets. */
export const heatOf = (bits) => Math.min(1, Math.max(0, bits / 16)).toFixed(3);

export const bits = (value) => `${value.toFixed(value < 10 ? 1 : 0)} bits`;

export const milliseconds = (ms) =>
  ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;

/** 0.1234 as "12 %"; small ones, and those that are nearly certain, keep more digits. */
export function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 0.01) return "<0.01 %";
  if (value > 99 && value < 99.95) return `${value.toFixed(1)} %`;
  return `${value.toFixed(value >= 10 || value === 0 ? 0 : value < 1 ? 2 : 1)} %`;
}

export const number = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 3 });

/** 11,513,779 as "11.5M". */
export const compact = (value) =>
  value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });

/** What cannot be seen in a token, made visible: a space stays unless it is alone, a line end is an arrow. */
export const visible = (token) =>
  token === "" ? "∅" : token === "</s>" ? "end of line" : token.replace(/^ $/, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
