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
  console.log(perplexity, suffix, learnt.num_words, models.data[0]?.id);

  // @ts-expect-error: a text is required
  await client.autocomplete({});
  // @ts-expect-error: a name is not a number
  await client.autocomplete({ text: "the c", limit: "5" });
  // @ts-expect-error: no such option
  await client.score({ texts: [""], smoothing: true });
  // @ts-expect-error: a path needs its parameter
  await client.accept({ text: "the cat" });
}
