/* The client against a running service: `SERVICE=http://127.0.0.1:8000 API_KEY=… npm test`. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, test } from "node:test";

import { createClient, GramophoneError } from "../dist/client.js";

const { SERVICE, API_KEY } = process.env;
assert(SERVICE, "SERVICE is not set: it is the URL of a running service");
const client = createClient(SERVICE, { apiKey: API_KEY });

/** Start a server that answers each request with the next of some replies; return its URL and the requests. */
async function answering(...replies) {
  const requests = [];
  const server = createServer((request, response) => {
    requests.push(request);
    request.text = "";
    request.setEncoding("utf8").on("data", (part) => (request.text += part));
    const { status = 200, headers = {}, body = "{}" } = replies[requests.length - 1];
    request.on("end", () => response.writeHead(status, headers).end(body));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  after(() => server.close());
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

test("each call returns the reply of its endpoint", async () => {
  const models = await client.models();
  const model = models.data[0].id;
  assert.equal((await client.model({ address: model })).id, model);
  assert.equal((await client.score({ texts: ["the cat sat", "the"] })).results.length, 2);
  assert.equal((await client.nextToken({ context: "the", top_k: 3 })).results[0].candidates.length, 3);
  assert.equal((await client.autocomplete({ text: "the c", limit: 2 })).prefix, "c");
  assert.ok((await client.check({ text: "the ctt" })).words.length >= 2);
  assert.equal((await client.quality({ texts: [{ text: "the cat" }] })).results.length, 1);
  const { token_ids: ids } = (await client.generate({ prompt: "the", max_tokens: 4, seed: 1 })).choices[0];
  assert.ok(ids.length <= 4);
  assert.ok((await client.complete({ model, prompt: "the", max_tokens: 2 })).choices.length);
  const { tokens } = await client.tokenize({ prompt: "the cat" });
  assert.equal((await client.detokenize({ tokens })).prompt.trim(), "the cat");
});

test("candidates are re-ranked", async () => {
  const candidates = [{ text: "sat cat the" }, { text: "the cat sat" }];
  const { lists } = await client.rerank({ lists: [{ candidates }] });
  assert.deepEqual(lists[0].ranking.map(({ index }) => index).sort(), [0, 1]);
});

test("states are opened, read and freed", async () => {
  const { states } = await client.openStates({ context: "the" });
  const handles = states.map(({ state }) => state);
  assert.equal((await client.nextOfStates({ states: handles, token_ids: [3, 4] })).logprobs[0].length, 2);
  assert.equal((await client.freeStates({ states: handles })).freed, 1);
});

test("a user's words are learnt, exported, replaced and deleted", async () => {
  const user = "ann.lee";
  assert.equal((await client.accept({ user, text: "the gramophone", context: "" })).user, user);
  const { words, pairs } = await client.exportUser({ user });
  assert.ok(words.some(({ text }) => text === "gramophone"));
  assert.equal((await client.restoreUser({ user, words, pairs })).num_words, words.length);
  assert.equal((await client.forgetWord({ user, word: "gramophone" })).num_words, words.length - 1);
  await assert.rejects(client.forgetWord({ user, word: "a/b" }), { status: 404, code: "unknown_word", param: "word" });
  assert.equal((await client.forgetUser({ user })).forgotten, true);
});

/** Return the entries of a word list. */
async function entriesOf(name) {
  const entries = [];
  for await (const entry of client.wordListEntries({ name })) entries.push(entry);
  return entries;
}

test("a word list is stored, listed, exported, replaced and deleted", async () => {
  const name = "names";
  await client.deleteWordList({ name });
  const entries = ["Jaan Tamm", ["Ülle\u2028Kask", 2], { text: "zoë" }, { text: "zoë", weight: 3 }];
  const stored = await client.storeWordList({ name, entries, casing: "exact", language: "et" });
  assert.deepEqual([stored.version, stored.casing, stored.language, stored.entries], [1, "exact", "et", 3]);
  assert.deepEqual(await client.wordList({ name }), stored);
  const { wordlists } = await client.wordLists();
  assert.deepEqual(wordlists.find((one) => one.name === name), stored);
  const exported = await entriesOf(name);
  const weights = new Map(exported.map(({ text, weight }) => [text, weight]));
  assert.deepEqual([weights.get("Jaan Tamm"), weights.get("Ülle Kask"), weights.get("zoë")], [1, 2, 4]);
  const replaced = await client.storeWordList({ name, entries: weights, language: null });
  assert.deepEqual([replaced.version, replaced.casing, replaced.language], [2, "ignore", null]);
  assert.equal((await entriesOf(name)).length, 3);
  assert.equal((await client.deleteWordList({ name })).deleted, true);
  assert.equal((await client.deleteWordList({ name })).deleted, false);
  await assert.rejects(entriesOf(name), { status: 404, code: "unknown_word_list", param: "name" });
});

test("requests name a word list", async () => {
  const wordlist = "animals";
  await client.storeWordList({ name: wordlist, entries: ["zebraffe"] });
  const offered = await client.autocomplete({ text: "the zebraf", dictionary: ["zebrafish", { wordlist }] });
  assert.deepEqual(offered.completions.map(({ text }) => text).sort(), ["zebraffe", "zebrafish"]);
  const blocked = await client.autocomplete({ text: "the zebraf", dictionary: ["zebraffe"], blocklist: [{ wordlist }] });
  assert.deepEqual(blocked.completions, []);
  const lists = [{ candidates: [{ text: "the zebraffe" }] }];
  const { weights } = await client.rerank({ lists, phrases: [{ wordlist, class: "animal" }] });
  assert.deepEqual(weights, { lm: 1, "phrases:animal": 10 });
  await client.deleteWordList({ name: wordlist });
  await assert.rejects(client.check({ text: "the", dictionary: [{ wordlist }] }), { param: "dictionary[0].wordlist" });
});

test("a wrong entry of a word list is an error with its line", async () => {
  const storing = client.storeWordList({ name: "wrong", entries: ["a", ["b", 0]] });
  await assert.rejects(storing, { status: 400, param: "body", message: /^line 2: weight is 0/ });
  await assert.rejects(client.storeWordList({ name: "a b", entries: ["a"] }), { status: 400, param: "name" });
});

test("a word list is sent again after 429", async () => {
  const { url, requests } = await answering({ status: 429, headers: { "retry-after": "0" } }, {});
  const entries = ["a", ["b", 2]].values();
  await createClient(url).storeWordList({ name: "a b", entries, casing: "exact", language: undefined });
  assert.equal(requests[1].url, "/v1/wordlists/a%20b?casing=exact");
  assert.equal(requests[1].headers["content-type"], "application/x-ndjson");
  assert.deepEqual(requests.map(({ text }) => text), Array(2).fill('"a"\n{"text":"b","weight":2}\n'));
});

for (const [body, message] of [
  ['{"text": "a", "weight": 1}\n{"text"', /ended early/],
  ["<html>\n", /cannot be parsed/],
]) {
  test(`entries ${JSON.stringify(body)} are an error`, async () => {
    const { url } = await answering({ body });
    const read = async () => {
      for await (const entry of createClient(url).wordListEntries({ name: "a" })) assert.equal(entry.text, "a");
    };
    await assert.rejects(read, { name: "GramophoneError", message });
  });
}

test("a stream yields what one reply contains", async () => {
  const request = { prompt: "the", max_tokens: 8, seed: 3 };
  let text = "";
  for await (const event of client.stream(request)) text += event.choices[0].text;
  assert.equal(text, (await client.generate(request)).choices[0].text);
});

test("leaving a stream ends it", async () => {
  const events = client.stream({ prompt: "the", max_tokens: 100, ignore_eos: true, seed: 3 });
  assert.equal((await events.next()).done, false);
  await events.return();
  assert.equal((await events.next()).done, true);
});

test("an error has status, code, field and request id", async () => {
  await assert.rejects(client.nextToken({ context: "the", top_k: 0 }), (error) => {
    assert.ok(error instanceof GramophoneError);
    const { status, code, param, message, requestId } = error;
    assert.deepEqual([status, code, param], [400, "invalid_value", "top_k"]);
    assert.match(message, /top_k is 0/);
    assert.ok(requestId);
    return true;
  });
});

test("a wrong key is an error", async () => {
  if (!API_KEY) return;
  await assert.rejects(createClient(SERVICE, { apiKey: "wrong" }).models(), { status: 401, code: "invalid_api_key" });
});

test("an aborted call throws the reason of its signal", async () => {
  const reason = new Error("enough");
  await assert.rejects(client.models({}, { signal: AbortSignal.abort(reason) }), reason);
});

test("429 and 503 are retried after the time that the service names", async () => {
  const busy = { status: 503, headers: { "retry-after": "0" } };
  const { url, requests } = await answering(busy, { ...busy, status: 429 }, { body: '{"data": []}' });
  assert.deepEqual(await createClient(url).models(), { data: [] });
  assert.equal(requests.length, 3);
});

test("the last retry throws", async () => {
  const body = '{"error": {"message": "busy", "type": "overloaded_error", "param": null, "code": "overloaded"}}';
  const { url, requests } = await answering(...Array(2).fill({ status: 429, headers: { "retry-after": "0" }, body }));
  const expected = { status: 429, code: "overloaded", message: "busy" };
  await assert.rejects(createClient(url, { maxRetries: 1 }).models(), expected);
  assert.equal(requests.length, 2);
});

test("a wait for a retry can be aborted", async () => {
  const { url } = await answering({ status: 503, headers: { "retry-after": "30" } });
  const controller = new AbortController();
  const aborting = async (...given) => {
    const response = await fetch(...given);
    setTimeout(() => controller.abort(new Error("enough")));
    return response;
  };
  const impatient = createClient(url, { fetch: aborting });
  await assert.rejects(impatient.models({}, { signal: controller.signal }), /enough/);
});

test("a reply that is no JSON is the message", async () => {
  const { url } = await answering({ status: 502, body: "bad gateway" });
  await assert.rejects(createClient(url).models(), { status: 502, code: null, message: "bad gateway" });
});

test("a page instead of a reply is an error", async () => {
  const { url } = await answering({ body: "<html>" });
  await assert.rejects(createClient(url).models(), (error) => {
    assert.ok(error instanceof GramophoneError);
    assert.match(error.message, /the reply of \/v1\/models cannot be read/);
    return true;
  });
});

test("the time before a retry may be a date", async () => {
  const past = { status: 503, headers: { "retry-after": "Wed, 21 Oct 2015 07:28:00 GMT" } };
  const { url, requests } = await answering(...Array(20).fill(past), {});
  await createClient(url, { maxRetries: 20 }).models();
  assert.equal(requests.length, 21);
});

test("an error within a stream is thrown", async () => {
  const body = 'data: {"choices": []}\n\n: \n\ndata: {"error": {"message": "late", "code": "deadline_exceeded"}}\n\n';
  const { url } = await answering({ body });
  const read = async () => {
    for await (const event of createClient(url).stream({})) assert.deepEqual(event.choices, []);
  };
  await assert.rejects(read, { code: "deadline_exceeded", message: "late" });
});

test("a stream that ends early is an error", async () => {
  const { url } = await answering({ body: 'data: {"choices": []}\n\n' });
  const read = async () => {
    for await (const event of createClient(url).stream({})) assert.ok(event);
  };
  await assert.rejects(read, /ended early/);
});

for (const data of ["<html>", '{"choices": [', "\u00ff", ""]) {
  test(`an event ${JSON.stringify(data)} is an error`, async () => {
    const { url } = await answering({ body: `data: ${data}\n\n` });
    await assert.rejects(createClient(url).stream({}).next(), (error) => {
      assert.ok(error instanceof GramophoneError);
      assert.match(error.message, /cannot be parsed/);
      return true;
    });
  });
}

test("a line without an end is an error, in time in proportion to its length", async () => {
  const chunk = new Uint8Array(4096).fill(120);
  let sent = 0;
  const endless = new ReadableStream({ pull: (controller) => (sent++, controller.enqueue(chunk)) });
  const client = createClient("http://x", { fetch: async () => new Response(endless) });
  await assert.rejects(client.stream({}).next(), { name: "GramophoneError", message: /line of the stream has over 67108864 char/ });
  assert.ok(sent < 2 ** 26 / 4096 + 100);
});

test("a service that is not there is an error without status", async () => {
  const { url } = await answering();
  const nobody = createClient(url.replace(/\d+$/, "1"));
  await assert.rejects(nobody.models(), { status: 0, code: null });
});
