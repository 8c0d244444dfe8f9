"""Small files in the layouts that recognisers and translators document, with the lists that they hold."""

import math

from models.reranking.candidates import Candidate, CandidateList

VOSK = """\
{
  "partial" : "the"
}
{
  "alternatives" : [{
      "confidence" : 231.416382,
      "result" : [{
          "end" : 1.110000,
          "start" : 0.840000,
          "word" : "the"
        }, {
          "end" : 1.530000,
          "start" : 1.110000,
          "word" : "cat"
        }],
      "text" : "the cat"
    }, {
      "confidence" : 229.958801,
      "text" : "the cap"
    }]
}
{"alternatives" : [{"text": "", "confidence" : 1.0}] }
"""

VOSK_SINGLE = """\
{
  "partial" : ""
}
{
  "result" : [{
      "conf" : 0.986124,
      "end" : 1.110000,
      "start" : 0.840000,
      "word" : "the"
    }, {
      "conf" : 1.000000,
      "end" : 1.530000,
      "start" : 1.110000,
      "word" : "cat"
    }],
  "text" : "the cat"
}
{
  "text" : ""
}
"""

WHISPER = """\
{"text": " The cat sat. Did it?", "segments": [
{"id": 0, "seek": 0, "start": 0.0, "end": 1.36, "text": " The cat sat.", "tokens": [50364, 440, 3857, 3227, 13, 50432],
"temperature": 0.0, "avg_logprob": -0.3125, "compression_ratio": 0.75, "no_speech_prob": 0.015625, "words": [
{"word": " The", "start": 0.0, "end": 0.42, "probability": 0.75},
{"word": " cat", "start": 0.42, "end": 0.8, "probability": 0.984375},
{"word": " sat.", "start": 0.8, "end": 1.36, "probability": 0.0000152587890625}]},
{"id": 1, "seek": 0, "start": 2.0, "end": 2.0, "text": "", "tokens": [],
"temperature": 0.0, "avg_logprob": -0.3125, "compression_ratio": 0.75, "no_speech_prob": 0.015625, "words": []},
{"id": 2, "seek": 200, "start": 2.0, "end": 2.5, "text": " Did it?", "tokens": [50364, 2589, 309, 30, 50389],
"temperature": 0.2, "avg_logprob": -0.5, "compression_ratio": 0.5, "no_speech_prob": 0.25, "words": [
{"word": " Did", "start": 2.0, "end": 2.25, "probability": 0.5},
{"word": " it?", "start": 2.25, "end": 2.5, "probability": 1.0}]}],
"language": "en"}
"""

AZURE = """\
{
  "RecognitionStatus": "Success",
  "Offset": "1236645672289",
  "Duration": "1236645672289",
  "NBest": [
    {
      "Confidence": 0.5,
      "Display": "What's the weather like?",
      "ITN": "what's the weather like",
      "Lexical": "what's the weather like",
      "MaskedITN": "what's the weather like",
      "Words": [
        {"Word": "what's", "Offset": 1236645672289, "Duration": 3200000, "Confidence": 0.5},
        {"Word": "the", "Offset": 1236648872289, "Duration": 1100000, "Confidence": 0.875},
        {"Word": "weather", "Offset": 1236649972289, "Duration": 4000000, "Confidence": 1},
        {"Word": "like", "Offset": 1236653972289, "Duration": 2800000, "Confidence": 0}
      ]
    },
    {
      "Confidence": "0.25",
      "Display": "what is the weather like",
      "ITN": "what is the weather like",
      "Lexical": "what is the weather like",
      "MaskedITN": "what is the weather like"
    }
  ]
}
"""

AZURE_BATCH = """\
{
  "source": "https://example.com/hello.wav",
  "timestamp": "2020-06-16T09:30:21Z",
  "durationInTicks": 41200000,
  "duration": "PT4.12S",
  "combinedRecognizedPhrases": [
    {"channel": 0, "lexical": "hello world good bye", "display": "Hello world. Good bye."}
  ],
  "recognizedPhrases": [
    {
      "recognitionStatus": "Success",
      "channel": 0,
      "offset": "PT0.07S",
      "nBest": [
        {
          "confidence": 0.5,
          "lexical": "hello world",
          "itn": "hello world",
          "maskedITN": "hello world",
          "display": "Hello world.",
          "words": [
            {"word": "hello", "offset": "PT0.09S", "duration": "PT0.48S", "confidence": 0.98},
            {"word": "world", "offset": "PT0.59S", "duration": "PT0.16S", "confidence": 0.25}
          ]
        },
        {"confidence": 0, "lexical": "hello word", "itn": "hello word", "display": "Hello word."}
      ]
    },
    {"recognitionStatus": "Success", "nBest": [{"confidence": 1, "lexical": "good bye", "display": "Good bye."}]}
  ]
}
"""

GOOGLE = """\
{
  "results": [
    {
      "alternatives": [
        {
          "transcript": "how old is the Brooklyn Bridge",
          "confidence": 0.98267895,
          "words": [
            {"startTime": "0s", "endTime": "0.300s", "word": "how", "confidence": 0.98762906},
            {"startTime": "0.300s", "endTime": "0.600s", "word": "old", "confidence": 0.96929157},
            {"startTime": "0.600s", "endTime": "0.800s", "word": "is", "confidence": 0.98271006},
            {"startTime": "0.800s", "endTime": "0.900s", "word": "the", "confidence": 0.98271006},
            {"startTime": "0.900s", "endTime": "1.100s", "word": "Brooklyn", "confidence": 0.5},
            {"startTime": "1.100s", "endTime": "1.700s", "word": "Bridge", "confidence": 0.98762906}
          ]
        },
        {"transcript": "how old is the brook in bridge"}
      ],
      "resultEndTime": "1.770s",
      "languageCode": "en-us"
    },
    {"alternatives": [{"transcript": " it is"}], "stability": 0.9},
    {"alternatives": [{"transcript": " it is old", "confidence": 0.9}], "isFinal": true}
  ],
  "totalBilledTime": "15s"
}
"""

AWS = """\
{"jobName":"my-job","accountId":"111122223333","status":"COMPLETED","results":{"language_code":"en-US",
"transcripts":[{"transcript":"The rainforest."}],
"items":[{"start_time":"1.15","end_time":"1.35","alternatives":[{"confidence":"1.0","content":"The"}],
"type":"pronunciation"}],
"segments":[{"start_time":"1.04","end_time":"5.065","alternatives":[
{"transcript":"The rainforest.","items":[
{"start_time":"1.15","confidence":"1.0","end_time":"1.35","type":"pronunciation","content":"The"},
{"start_time":"1.35","confidence":"0.5","end_time":"2.05","type":"pronunciation","content":"rainforest"},
{"confidence":"0.0","type":"punctuation","content":"."}]},
{"transcript":"The rain forest","items":[
{"start_time":"1.15","confidence":"1.0","end_time":"1.35","type":"pronunciation","content":"The"},
{"start_time":"1.35","confidence":"0.25","end_time":"1.7","type":"pronunciation","content":"rain"},
{"start_time":"1.7","confidence":"0.0","end_time":"2.05","type":"pronunciation","content":"forest"}]}]}]}}
"""

NEMO_MANIFEST = """\
{"audio_filepath": "a/utt-1.wav", "text": "the cat", "beams": [["the cap", -4.5], ["the cat", -5.25]]}
{"audio_filepath": "a/utt-2.wav", "pred_text": "", "beams": [["", -0.5]]}
"""

FAIRSEQ = """\
2020-08-01 10:00:00 | INFO | fairseq_cli.generate | loading model(s) from model.pt
S-1\tguten Morgen .
T-1\tGood morning.
H-1\t-0.5\tgood mor@@ ning .
D-1\t-0.5\tGood morning.
P-1\t-0.2000 -0.8000
H-1\t-1.0\tgood day .
D-1\t-1.0\tGood day.
P-1\t-1.0000 -1.0000
A-1\t0-0 1-1
S-0\tja
W-0\t0.123\tseconds
H-0\t-2.0\tyes
H-0\t-4.0\t
Generate test with beam=2: BLEU4 = 30.0
"""

CTRANSLATE2 = """\
-0.5 ||| Good morning .
-1.25 ||| Good day .
-0.302143 ||| Yes
-2e-05 ||| No ||| -0.1 -0.2
"""

SOCKEYE = """\
{"score": 0.25, "scores": [[0.25, 1.5], [0.75, 2.0]], "sentence_id": 1, "translations": ["Good morning.", "Good day."]}
{"score": 0.5, "scores": [0.5, 1], "sentence_id": 2, "translation": "Yes", "translations": ["Yes", "No"]}
{"score": 0.125, "sentence_id": 3, "translation": "Thanks."}
"""


def some_list(name, *candidates, reference=None):
    """Return a list of texts with their features and their words' confidences, if any."""
    references = () if reference is None else (reference,)
    return CandidateList(name, "", tuple(Candidate(*candidate) for candidate in candidates), references)


def scored(text, score):
    """Return a text with its total score."""
    return text, {"score": score}


def confident(text, confidence, *of_words):
    """Return a text with the logarithm of its confidence, and those of its words."""
    return text, {"log_confidence": math.log(confidence)}, of_words


_LN2 = math.log(2)
_GOOGLE = [
    some_list(
        "0",
        (
            "how old is the Brooklyn Bridge",
            {},
            (0.98762906, 0.96929157, 0.98271006, 0.98271006, 0.5, 0.98762906),
        ),
        ("how old is the brook in bridge", {}),
    ),
    some_list("1", ("it is old", {})),
]
_FAIRSEQ = some_list(
    "1", scored("Good morning.", -0.5 * _LN2), scored("Good day.", -_LN2), reference="Good morning."
)

SAMPLES = {
    "vosk": (
        VOSK,
        [
            some_list("0", scored("the cat", 231.416382), scored("the cap", 229.958801)),
            some_list("1", scored("", 1.0)),
        ],
    ),
    "vosk (single)": (
        VOSK_SINGLE,
        [some_list("0", ("the cat", {}, (0.986124, 1.0))), some_list("1", ("", {}))],
    ),
    "whisper": (
        WHISPER,
        [
            some_list("0", ("The cat sat.", {}, (0.75, 0.984375, 2.0**-16))),
            some_list("1", ("", {})),
            some_list("2", ("Did it?", {}, (0.5, 1.0))),
        ],
    ),
    "azure": (
        AZURE,
        [
            some_list(
                "0",
                confident("what's the weather like", 0.5, 0.5, 0.875, 1.0, 0.0),
                confident("what is the weather like", 0.25),
            )
        ],
    ),
    "azure (batch)": (
        AZURE_BATCH,
        [
            some_list("0", confident("hello world", 0.5, 0.98, 0.25), confident("hello word", 1e-4)),
            some_list("1", confident("good bye", 1)),
        ],
    ),
    "google": (GOOGLE, _GOOGLE),
    "google (operation)": (
        f'{{"name": "1", "done": true, "response": {GOOGLE}}}',
        _GOOGLE,
    ),
    "aws": (
        AWS,
        [
            some_list(
                "0",
                confident("The rainforest.", 0.5, 1.0, 0.5),
                confident("The rain forest", 0.25 * 1e-4, 1.0, 0.25, 0.0),
            )
        ],
    ),
    "nemo-manifest": (
        NEMO_MANIFEST,
        [
            some_list("utt-1", scored("the cap", -4.5), scored("the cat", -5.25), reference="the cat"),
            some_list("utt-2", scored("", -0.5)),
        ],
    ),
    "fairseq": (FAIRSEQ, [_FAIRSEQ, some_list("0", scored("yes", -2 * _LN2), scored("", -4 * _LN2))]),
    "ctranslate2": (
        CTRANSLATE2,
        [
            some_list(None, scored("Good morning .", -0.5), scored("Good day .", -1.25)),
            some_list(None, scored("Yes", -0.302143), scored("No", -2e-05)),
        ],
    ),
    "sockeye": (
        SOCKEYE,
        [
            some_list("1", scored("Good morning.", -0.25), scored("Good day.", -0.75)),
            some_list("2", scored("Yes", -0.5), scored("No", -1.0)),
            some_list("3", scored("Thanks.", -0.125)),
        ],
    ),
}
"""Text and its lists, by format; a word in parentheses names one of several layouts."""
