// Calls a service with Node's fetch. Prints a line for each reply: the kind of request, the status and whether it has a
// score, or the last line of a stream.
const SCORE = '{"texts": ["the cat sat"]}';
const LARGE = SCORE + " ".repeat(1_000_000);
const STREAM = '{"max_tokens": 20, "ignore_eos": true, "stream": true}';
const url = process.argv[2];

async function to(path, body, options = {}) {
  return fetch(url + path, { method: "POST", headers: { "content-type": "application/json" }, body, ...options });
}

async function ask(what, body, options) {
  const answer = await to("/v1/score", body, options);
  console.log(what, answer.status, (await answer.text()).includes("logprob"));
}

async function stream() {
  const answer = await to("/v1/generate", STREAM);
  let text = "";
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) text += part;
  console.log("stream", answer.status, text.trimEnd().split("\n").at(-1));
}

for (let round = 0; round < 3; round++) {
  await ask("small", SCORE);
  await ask("large", LARGE);
  await ask("chunked", new Blob([LARGE]).stream(), { duplex: "half" });
  await stream();
}
