/**
 * Client of Gramophone's HTTP API, over `fetch`, for Node 18 or later and browsers.
 *
 * `types.ts` is generated from the service's OpenAPI document; `CALLS` names the operations. Everything else follows
 * from the two, except for replies and requests in lines.
 */

import type { components, paths } from "./types.js";

/** Bodies of requests and replies by their names in the OpenAPI document. */
export type Schemas = components["schemas"];

/** Method and path of each call. */
const CALLS = {
  /** Most probable next tokens or words after each context. */
  nextToken: ["post", "/v1/next-token"],
  /** Log-probability and perplexity of texts. */
  score: ["post", "/v1/score"],
  /** Texts by bits per word and byte. */
  quality: ["post", "/v1/quality"],
  /** Lists of candidates in their new order. */
  rerank: ["post", "/v1/rerank"],
  /** Texts corrected by phrases, forms of numbers and replacements that are proposed. */
  correct: ["post", "/v1/correct"],
  /** Best texts of lattices and confusion networks. */
  rescore: ["post", "/v1/lattices"],
  /** Texts with capitals and punctuation. */
  restore: ["post", "/v1/restore"],
  /** Weights of re-ranking, tuned on lists with references. */
  tune: ["post", "/v1/rerank/tune"],
  /** Continuations of a prompt; `stream` yields them token by token. */
  generate: ["post", "/v1/generate"],
  /** Continuations in the format of OpenAI's completions. */
  complete: ["post", "/v1/completions"],
  /** Completions of the word being typed. */
  autocomplete: ["post", "/v1/autocomplete"],
  /** Words that a user has accepted, to be learnt. */
  accept: ["post", "/v1/autocomplete/users/{user}/accepted"],
  /** All words learnt from a user. */
  exportUser: ["get", "/v1/autocomplete/users/{user}"],
  /** Words that replace those learnt from a user. */
  restoreUser: ["put", "/v1/autocomplete/users/{user}"],
  /** Deletion of one word of a user. */
  forgetWord: ["delete", "/v1/autocomplete/users/{user}/words/{word}"],
  /** Deletion of a user's words. */
  forgetUser: ["delete", "/v1/autocomplete/users/{user}"],
  /** Probable errors of a text, with suggestions. */
  check: ["post", "/v1/check"],
  /** Tokens of a text. */
  tokenize: ["post", "/tokenize"],
  /** Text of token ids. */
  detokenize: ["post", "/detokenize"],
  /** Stored states after each context, for decoders. */
  openStates: ["post", "/v1/states"],
  /** States after continuations of stored states. */
  advanceStates: ["post", "/v1/states/advance"],
  /** Log-probabilities of tokens after stored states. */
  nextOfStates: ["post", "/v1/states/next"],
  /** Deletion of stored states. */
  freeStates: ["post", "/v1/states/free"],
  /** Stored word lists; `storeWordList` stores one, and `wordListEntries` yields its entries. */
  wordLists: ["get", "/v1/wordlists"],
  /** Description of one word list. */
  wordList: ["get", "/v1/wordlists/{name}"],
  /** Deletion of a word list. */
  deleteWordList: ["delete", "/v1/wordlists/{name}"],
  /** Models of the service. */
  models: ["get", "/v1/models"],
  /** Description of one model. */
  model: ["get", "/v1/models/{address}"],
} as const;

type Json<C> = C extends { content: { "application/json": infer B } } ? B : never;
type Operation<K extends keyof typeof CALLS> = paths[(typeof CALLS)[K][1]] extends infer P
  ? (typeof CALLS)[K][0] extends keyof P
    ? P[(typeof CALLS)[K][0]]
    : never
  : never;
type Parameters<O> = O extends { parameters: { path: infer P } } ? P : unknown;
type Body<O> = O extends { requestBody: infer B } ? Json<B> : unknown;

/** Fields of a call: those of its body, and the parameters of its path. */
export type Request<K extends keyof typeof CALLS> = Body<Operation<K>> & Parameters<Operation<K>>;

/** Reply of a call. */
export type Reply<K extends keyof typeof CALLS> = Operation<K> extends { responses: { 200: infer R } } ? Json<R> : never;

/** Word or phrase, with weight 1 if it is only a text. */
export type WordListEntry = string | readonly [text: string, weight: number] | Schemas["WeightedEntry"];

/** Name and properties of a word list, and its entries, such as a map from texts to weights. */
export type WordListRequest = { name: string; entries: Iterable<WordListEntry> } & NonNullable<
  paths["/v1/wordlists/{name}"]["put"]["parameters"]["query"]
>;

/** Options of one call. */
export interface CallOptions {
  /** Cancels the call, and the computation in the service. */
  signal?: AbortSignal;
}

/** Options of a client. */
export interface ClientOptions {
  /** API key, sent as `Authorization: Bearer`. Keep it out of web pages, where anyone can read it. */
  apiKey?: string;
  /** Further headers of every request. */
  headers?: Record<string, string>;
  /** Maximum retries of a request after 429 or 503; 2 by default. */
  maxRetries?: number;
  /** Implementation of `fetch`, the global one by default. */
  fetch?: typeof fetch;
}

/** Error of the service, or of the connection to it (`status` 0). The reason of an aborted signal is thrown as it is. */
export class GramophoneError extends Error {
  override readonly name = "GramophoneError";

  constructor(
    message: string,
    /** HTTP status; 0 without a reply. */
    readonly status: number,
    /** Stable name of the error, such as `invalid_value`; null without one. */
    readonly code: string | null = null,
    /** Path of the invalid field, such as `texts[3]`; null if the error concerns no field. */
    readonly param: string | null = null,
    /** Id of the request in the service's log; null if unknown. */
    readonly requestId: string | null = null,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** Client of one service: a method for each call, and those with lines. */
export type Client = {
  [K in keyof typeof CALLS]: (
    ...given: Record<never, never> extends Request<K>
      ? [request?: Request<K>, options?: CallOptions]
      : [request: Request<K>, options?: CallOptions]
  ) => Promise<Reply<K>>;
} & {
  /** Continuations of a prompt, token by token; leaving the loop ends the generation. */
  stream(request: Omit<Request<"generate">, "stream">, options?: CallOptions): AsyncGenerator<Reply<"generate">, void>;
  /** Store a word list, in place of one of this name; the weights of equal entries are added up. */
  storeWordList(request: WordListRequest, options?: CallOptions): Promise<Schemas["WordListReply"]>;
  /** Entries of a word list, in the service's order. */
  wordListEntries(
    request: Request<"wordList">,
    options?: CallOptions,
  ): AsyncGenerator<Required<Schemas["WeightedEntry"]>, void>;
};

const RETRIED = [429, 503];
const LONGEST_DELAY_S = 30;
/** Maximum characters of a line of a stream; a line with more is an error. */
const LONGEST_LINE = 2 ** 26;

/**
 * Create a client of the service at a URL.
 *
 * Every method throws `GramophoneError`.
 */
export function createClient(baseUrl: string, options: ClientOptions = {}): Client {
  const { apiKey, maxRetries = 2 } = options;
  const headers = { ...options.headers, ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }) };

  /** Return a successful response; with lines, the fields of the request are in the URL. */
  async function send(
    method: string,
    path: string,
    request: object,
    signal?: AbortSignal,
    lines?: string,
  ): Promise<Response> {
    const { url: place, rest } = locate(baseUrl, path, request);
    const url = lines === undefined ? place : `${place}?${queryOf(rest)}`;
    const init: RequestInit = { method: method.toUpperCase(), headers, signal: signal ?? null };
    if (lines !== undefined) {
      init.headers = { "content-type": "application/x-ndjson", ...headers };
      init.body = lines;
    } else if (method === "post" || method === "put") {
      init.headers = { "content-type": "application/json", ...headers };
      init.body = JSON.stringify(rest);
    }
    for (let attempt = 0; ; attempt++) {
      const response = await (options.fetch ?? fetch)(url, init).catch((cause: unknown) => {
        if (signal?.aborted) throw cause;
        throw new GramophoneError(`${url} cannot be reached`, 0, null, null, null, { cause });
      });
      if (response.ok) return response;
      const error = await errorOf(response);
      if (!RETRIED.includes(response.status) || attempt >= maxRetries) throw error;
      await sleep(retryDelayS(response, attempt), signal);
    }
  }

  async function* stream(request: object, { signal }: CallOptions = {}): AsyncGenerator<Reply<"generate">, void> {
    const [method, path] = CALLS.generate;
    const response = await send(method, path, { ...request, stream: true }, signal);
    for await (const data of eventsOf(response, signal)) {
      const event = parseLine(data, response);
      if (event.error) throw new GramophoneError(event.error.message, response.status, event.error.code, event.error.param);
      yield event;
    }
  }

  async function* wordListEntries(request: object, { signal }: CallOptions = {}): AsyncGenerator<any, void> {
    const response = await send("get", "/v1/wordlists/{name}/entries", request, signal);
    for await (const line of linesOf(response, signal)) yield parseLine(line, response);
  }

  /** Send a request and parse its reply. */
  async function fetchReply(method: string, path: string, request: object, { signal }: CallOptions, lines?: string) {
    const response = await send(method, path, request, signal, lines);
    return response.json().catch((cause: unknown) => {
      if (signal?.aborted) throw signal.reason;
      throw new GramophoneError(`the reply of ${path} cannot be read`, response.status, null, null, null, { cause });
    });
  }

  const storeWordList = async ({ entries, ...request }: WordListRequest, options: CallOptions = {}) =>
    fetchReply("put", "/v1/wordlists/{name}", request, options, Array.from(entries, lineOf).join(""));

  const calls = Object.entries(CALLS).map(([name, [method, path]]) => [
    name,
    (request: object = {}, options: CallOptions = {}) => fetchReply(method, path, request, options),
  ]);
  return { ...Object.fromEntries(calls), stream, storeWordList, wordListEntries } as Client;
}

/** Return the line of an entry of a word list. */
function lineOf(entry: WordListEntry): string {
  return `${JSON.stringify(Array.isArray(entry) ? { text: entry[0], weight: entry[1] } : entry)}\n`;
}

/** Parse a line, or the data of an event. */
function parseLine(line: string, { status }: Response): any {
  try {
    return Object(JSON.parse(line));
  } catch (cause) {
    throw new GramophoneError("a line of the stream cannot be parsed", status, null, null, null, { cause });
  }
}

/** Return a query string of the fields that have values. */
function queryOf(fields: Record<string, unknown>): string {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null);
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
}

/** Put fields of a request that the path names into the URL; return the URL and the other fields. */
function locate(baseUrl: string, path: string, request: object): { url: string; rest: Record<string, unknown> } {
  const rest: Record<string, unknown> = { ...request };
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = String(rest[name]);
    delete rest[name];
    return encodeURIComponent(value);
  });
  return { url: baseUrl.replace(/\/*$/, filled), rest };
}

/** Read the error of an unsuccessful response; a proxy's reply may not be JSON. */
async function errorOf(response: Response): Promise<GramophoneError> {
  const text = await response.text();
  let error: Partial<Schemas["ErrorBody"]> = { message: text.slice(0, 200) || `status ${response.status}` };
  try {
    error = JSON.parse(text).error ?? error;
  } catch {
    // the text is the message
  }
  const { message = "", code = null, param = null } = error;
  return new GramophoneError(message, response.status, code, param, response.headers.get("x-request-id"));
}

/** Return the delay before another attempt in seconds: `Retry-After` (seconds or a date), else 0.5 s, doubled each time. */
function retryDelayS(response: Response, attempt: number): number {
  const header = response.headers.get("retry-after") ?? "";
  const asked = /^\d+$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  return Math.min(Number.isNaN(asked) ? 0.5 * 2 ** attempt : asked, LONGEST_DELAY_S);
}

function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, 1000 * seconds);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Yield the data of each server-sent event up to `[DONE]`. */
async function* eventsOf(response: Response, signal?: AbortSignal): AsyncGenerator<string, void> {
  for await (const line of linesOf(response, signal)) {
    if (line === "data: [DONE]") return;
    if (line.startsWith("data: ")) yield line.slice(6); // other lines are comments that keep the connection open
  }
  throw new GramophoneError("the stream ended early", response.status);
}

/** Yield the lines of a response, each of which has a line break. */
async function* linesOf(response: Response, signal?: AbortSignal): AsyncGenerator<string, void> {
  if (response.body === null) throw new GramophoneError("the stream has no body", response.status);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces: string[] = []; // of the line that has not ended
  let length = 0;
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((cause: unknown) => {
        if (signal?.aborted) throw signal.reason;
        throw new GramophoneError("the connection was lost", 0, null, null, null, { cause });
      });
      if (done) {
        if (length === 0) return;
        throw new GramophoneError("the stream ended early", response.status);
      }
      for (const [number, piece] of value.split("\n").entries()) {
        if (number > 0) {
          yield pieces.join("");
          [pieces, length] = [[], 0];
        }
        pieces.push(piece);
        length += piece.length;
      }
      if (length > LONGEST_LINE) {
        throw new GramophoneError(`a line of the stream has over ${LONGEST_LINE} characters`, response.status);
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
