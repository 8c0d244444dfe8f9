/* Sample texts. */

/** Initial text of the editor. */
export const WRITTEN = "Return the number of items in the list.\nThe function raises an ";

export const TEXTS = {
  Documentation: WRITTEN,
  Novel:
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.\nThe old man looked at the ",
  "Odd word": "Return the banana of items in the list.\nThe cat sat on the ",
};

export const PROMPT = "Return the";

export const WITH_ERRORS =
  "Return a knew list of the items in the dictionary.\nThe function rises an exception if their is no such file.\nThis methd returns the first argument.";

/** Candidates with acoustic scores, as from a speech recogniser. */
export const CANDIDATES = `return a knew list ||| am=-12.1
return a new list ||| am=-12.6
return a new lists ||| am=-13.0
written a new list ||| am=-12.9
return anew list ||| am=-12.3`;
