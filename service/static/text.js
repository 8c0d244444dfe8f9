/* Conversion of text offsets, and formatting of numbers. */

/** Convert an offset in code points (the service's unit) to UTF-16 units (the browser's). */
export function unitsOf(text, points) {
  let units = 0;
  for (const character of text) {
    if (points-- <= 0) break;
    units += character.length;
  }
  return units;
}

/** Convert a natural log-probability to a surprisal in bits. */
export const bitsOf = (logprob) => -logprob / Math.LN2;

/** Heat from 0 to 1; 16 bits or more are 1. */
export const heatOf = (bits) => Math.min(1, Math.max(0, bits / 16)).toFixed(3);

export const bits = (value) => `${value.toFixed(value < 10 ? 1 : 0)} bits`;

export const milliseconds = (ms) =>
  ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;

/** Format 0.1234 as "12 %", with more digits near 0 % and 100 %. */
export function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 0.01) return "<0.01 %";
  if (value > 99 && value < 99.95) return `${value.toFixed(1)} %`;
  return `${value.toFixed(value >= 10 || value === 0 ? 0 : value < 1 ? 2 : 1)} %`;
}

export const number = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 3 });

/** Format 11,513,779 as "11.5M". */
export const compact = (value) =>
  value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });

/** Replace invisible characters of a token: a lone space, line ends, tabs. */
export const visible = (token) =>
  token === "" ? "∅" : token === "</s>" ? "end of line" : token.replace(/^ $/, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
