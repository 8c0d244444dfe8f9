/* Use of the types: `tsc` compiles this file and nothing runs it. */

import { createClient, type Reply, type Schemas } from "../src/client.js";

const client = createClient("http://127.0.0.1:8000");

export async function use(): Promise<void> {
  const scored: Reply<"score"> = await client.score({ texts: ["the cat"] });
  const perplexity: number | null | undefined = scored.results[0]?.perplexity;
  const completed = await client.autocomplete({ text: "the c" }, { signal: AbortSignal.timeout(1000) });
  const suffix: string | null | undefined = completed.completions[0]?.suffix;
  const learnt: Schemas["UserReply"] = await client.accept({ user: "ann", text: "the cat" });
  const models = await client.models();
  for await (const event of client.stream({ prompt: "the" })) console.log(event.choices[0]?.text);
  const entries = new Map([["zebra", 2]]);
  const stored = await client.storeWordList({ name: "animals", entries, casing: "exact" });
  for await (const { text, weight } of client.wordListEntries({ name: "animals" })) console.log(text.length, weight + 1);
  await client.storeWordList({ name: "animals", entries: ["zoo", ["zebra", 2], { text: "zest" }], language: null });
  await client.autocomplete({ text: "the ze", dictionary: ["zoo", { wordlist: "animals" }] });
  await client.openStates({ context: "the", phrases: [{ text: "zoo" }, { wordlist: "animals", class: "a" }] });
  console.log(perplexity, suffix, learnt.num_words, models.data[0]?.id, stored.version);

  // @ts-expect-error: a text is required
  await client.autocomplete({});
  // @ts-expect-error: a name is not a number
  await client.autocomplete({ text: "the c", limit: "5" });
  // @ts-expect-error: no such option
  await client.score({ texts: [""], smoothing: true });
  // @ts-expect-error: a path needs its parameter
  await client.accept({ text: "the cat" });
  // @ts-expect-error: no such casing
  await client.storeWordList({ name: "animals", entries, casing: "lower" });
  // @ts-expect-error: an entry has a text
  await client.storeWordList({ name: "animals", entries: [{ weight: 2 }] });
}
