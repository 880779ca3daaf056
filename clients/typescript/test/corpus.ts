/** The documents that retrievers find in these tests, the question, and the sentence that is expected to be kept. */

import type { Budget } from "thresher-client";

export const QUESTION = "Who discovered penicillin, and when?";
export const TEXTS = [
  "Penicillium is a genus of moulds. Some of them ripen cheese.",
  "The hospital at Paddington is an old one — it has a tower 😀. Alexander Fleming discovered penicillin in 1928, in London. " +
    "Trains leave from there to Bristol, and a canal runs behind it. The summer was cool, and many people went to the sea.",
  "The tower is 324 metres high. It was finished in 1889.",
  "Bread is baked from flour, water and salt, and is best on its first day. Butter goes well with it.",
] as const;
export const SENTENCE = "Alexander Fleming discovered penicillin in 1928, in London.";
export const FLEMING = 1;
/** Large enough for that sentence, with a title, and for nothing else; with a marker, too. */
export const BUDGET: Budget = { tokens: 17 };
export const BUDGET_NUMBERED: Budget = { tokens: 20 };
