"""Compares Thresher with other tools that shorten contexts, on the same rows and at the same number of tokens.

    python3 -m venv peers && peers/bin/pip install -r benches/peers-requirements.txt
    peers/bin/pip install --no-deps selective-context==0.1.4 && peers/bin/python -m spacy download en_core_web_sm
    peers/bin/python benches/peers.py --url http://127.0.0.1:8080 --work /tmp/peers nq20:nq20.jsonl tatqa:tatqa.jsonl
    python3 -m venv headroom && headroom/bin/pip install headroom-ai==0.42.0 tokenizers
    headroom/bin/python benches/peers.py --methods headroom,headroom-text --work /tmp/peers nq20:nq20.jsonl tatqa:tatqa.jsonl

Contexts and times are appended to rows.jsonl in --work, and the report covers everything in that file. A row that a method has
already is not run again, except with --again. Headroom needs newer libraries than LLMLingua, so it has an environment of its own
and continues the same file. `make decoder` provides SmolLM2-135M-Instruct, the model of LLMLingua and Selective Context here, and
`python3 models/provision.py --reranker` the cross-encoder.
A row has `query`, `chunks` (`text`, `title`) and `facts`, which must all be kept, or `answers`, of which one must be kept. Rows
whose chunks do not contain them are skipped. Start the daemon with empty folders, so that it has not read the chunks before.

kept     Share of rows whose context has the facts, or one of the answers. Case and white space do not count.
tokens   Tokens of the contexts divided by those of the chunks and titles, counted with the tokenizer of SmolLM2.
joins    Share of rows with a misleading join: text that no source says. A context is cut at sentence ends, line ends and marks of
         left-out text. A part of three words or more is a join if no chunk, with its title before it, contains it. White space,
         case, citation markers, titles and Headroom's references do not count, nor does a sentence cut at its beginning or end.
seconds  Median time of a request, one at a time, after a request for other text. For `Thresher 1/4` only requests count for which
         the daemon had to read all chunks. `Thresher 1/4 again` is the same request a second time.
The last column is the difference in `kept` on the rows that both methods have, with a paired bootstrap interval of 95 %.
"""

import argparse
import csv
import json
import os
import random
import re
import statistics
import time
import urllib.request
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

MODELS = Path(__file__).resolve().parent.parent / "models"
TOKENIZER = Tokenizer.from_file(str(MODELS / "smollm2-135m/tokenizer.json"))
SHARE = 0.25
WARM_UP = {"query": "Who built the bridge?", "tokens": 99, "chunks": [{"text": "The bridge was built in 1871. " * 9}] * 2}


def full_text(chunk):
    return f"{chunk['title']}\n{chunk['text']}" if chunk.get("title") else chunk["text"]


def joined(row):
    return "\n\n".join(map(full_text, row["chunks"]))


@cache
def squeeze(text):
    return re.sub(r"\s+", "", text).lower()


def is_kept(text, row):
    """Whether a text has all facts of the row, or one of its answers."""
    squeezed = squeeze(text)
    found = [squeeze(needed) in squeezed for needed in row.get("facts") or row.get("answers") or []]
    return bool(found) and (all(found) if row.get("facts") else any(found))


def load_rows(path, count):
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    rows = [row for row in rows if is_kept(joined(row), row)][:count]
    return [row | {"tokens": count_tokens(joined(row))} for row in rows]


def count_tokens(text):
    return len(TOKENIZER.encode(text, add_special_tokens=False))


def thresher(args, **fields):
    def compress(row):
        chunks = [{name: chunk[name] for name in ("id", "title", "text") if chunk.get(name)} for chunk in row["chunks"]]
        body = json.dumps({"query": row["query"], "chunks": chunks, "deadline_ms": 60_000, **fields}).encode()
        request = urllib.request.Request(f"{args.url}/v1/compress", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                found = json.load(response)
        except urllib.error.HTTPError as error:
            if b"budget_impossible" not in (message := error.read()):
                raise SystemExit(f"the daemon refused a row: {message}") from error
            return {"context": ""}
        return {"context": found["context"], "cold": not sum(found["blocks"][tier] for tier in ("memory", "disk", "shared"))}

    return compress


def chunks_of(row):
    return [(at, chunk["text"]) for at, chunk in enumerate(row["chunks"])]


def sentences_of(row):
    """The sentences of each line, by pySBD. A row of a table is a unit, too."""
    import pysbd

    segmenter = pysbd.Segmenter(language="en", clean=False)
    lines = [(at, line) for at, chunk in enumerate(row["chunks"]) for line in chunk["text"].splitlines()]
    return [(at, sentence.strip()) for at, line in lines for sentence in segmenter.segment(line) if sentence.strip()]


def ranked(score, units_of):
    """Keeps the units with the highest scores that fit, under the titles of their chunks, in the order of the input."""

    def compress(row):
        units, left, kept, opened = units_of(row), SHARE * row["tokens"], set(), set()
        titles = [chunk.get("title") or "" for chunk in row["chunks"]]
        scores = score(row["query"], [f"{titles[at]} {text}".strip() for at, text in units])
        for unit in sorted(range(len(units)), key=lambda unit: -scores[unit]):
            at, text = units[unit]
            cost = count_tokens(text + "\n") + (0 if at in opened else count_tokens(titles[at] + "\n\n"))
            if cost <= left:
                left -= cost
                kept.add(unit)
                opened.add(at)
        texts = {at: [titles[at]] + [units[unit][1] for unit in sorted(kept) if units[unit][0] == at] for at in sorted(opened)}
        return {"context": "\n\n".join("\n".join(filter(None, lines)) for lines in texts.values())}

    return compress


def score_bm25(query, texts):
    import bm25s

    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    return index.get_scores(bm25s.tokenize([query], stopwords="en", return_ids=False, show_progress=False)[0])


def cosine_scorer():
    """Cosine of mean-pooled vectors of all-MiniLM-L6-v2. It reads 256 tokens of a text, as in sentence-transformers."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    words, model = (kind.from_pretrained(MODELS / ".cache/all-MiniLM-L6-v2") for kind in (AutoTokenizer, AutoModel))

    @torch.no_grad()
    def encode(texts):
        batch = words(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        mask = batch["attention_mask"][..., None]
        return torch.nn.functional.normalize((model(**batch).last_hidden_state * mask).sum(1), dim=1)

    def score(query, texts):
        question, scores = encode([query])[0], {}
        by_length = sorted(set(texts), key=len)
        for start in range(0, len(by_length), 32):
            batch = by_length[start : start + 32]
            scores.update(zip(batch, (encode(batch) @ question).tolist(), strict=True))
        return [scores[text] for text in texts]

    return score


def cross_encoder_scorer(_):
    """Logits of ms-marco-MiniLM-L-12-v2 in its publisher's int8 file. It reads 512 tokens of a pair, and one pair at a time: in a batch,
    the file scales the inputs of all pairs together, so that a pair's logit depends on the others."""
    import numpy as np
    import onnxruntime

    folder = MODELS / ".cache/ms-marco-MiniLM-L-12-v2"
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.no_padding()
    words.enable_truncation(512, strategy="only_second")

    def score(query, texts):
        pairs = [words.encode(query, text) for text in texts]
        inputs = [{"input_ids": pair.ids, "attention_mask": pair.attention_mask, "token_type_ids": pair.type_ids} for pair in pairs]
        arrays = [{name: np.array([ids], dtype=np.int64) for name, ids in of_pair.items()} for of_pair in inputs]
        return [session.run(["logits"], of_pair)[0].item() for of_pair in arrays]

    return score


def smollm2(args):
    """The folder with SmolLM2 as Hugging Face files, made from the GGUF file at the first use."""
    folder = args.work / "smollm2"
    if not folder.exists():
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        # This version of transformers reads neither the tied output layer nor the tokenizer of the GGUF file.
        source = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf", "tie_word_embeddings": True}
        AutoModelForCausalLM.from_pretrained(MODELS / ".cache/SmolLM2-135M-Instruct", **source).save_pretrained(folder)
        ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
        PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, **ends).save_pretrained(folder)
    return str(folder)


def llmlingua(model, fields, **options):
    """The calls of LLMLingua's README: the defaults, or the parameters of LongLLMLingua or LLMLingua-2."""
    import tiktoken
    from llmlingua import PromptCompressor

    # LLMLingua would download this tokenizer, and only counts tokens for its statistics with it.
    tiktoken.encoding_for_model = lambda _: argparse.Namespace(encode=lambda text, **_: TOKENIZER.encode(text).ids)
    compressor = PromptCompressor(model, device_map="cpu", **options)

    def compress(row):
        texts = [full_text(chunk) for chunk in row["chunks"]]
        return {"context": compressor.compress_prompt(texts, rate=SHARE, question=row["query"], **fields)["compressed_prompt"]}

    return compress


LONG = {"rank_method": "longllmlingua", "condition_in_question": "after_condition", "condition_compare": True,
        "reorder_context": "sort", "dynamic_context_compression_ratio": 0.3, "context_budget": "+100",
        "concate_question": False}  # fmt: skip
LINGUA2 = {"force_tokens": ["\n", "?"]}


def selective_context(args):
    """The package's code at its default level, phrases. SmolLM2 replaces GPT-2 as the model of self-information."""
    import spacy
    from selective_context import SelectiveContext
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class Local(SelectiveContext):
        def _prepare_phrase_tokenizer(self):
            self.nlp = spacy.load("en_core_web_sm", disable=["ner"])
            self.nlp.add_pipe("merge_noun_chunks")

        def _prepare_model(self):
            self.tokenizer = AutoTokenizer.from_pretrained(smollm2(args))
            self.model = AutoModelForCausalLM.from_pretrained(smollm2(args)).eval()
            self.get_self_information = self._get_self_info_via_gpt2

    select = Local()
    return lambda row: {"context": select(joined(row), reduce_ratio=1 - SHARE)[0]}


def headroom(_):
    """Headroom's compress() on the result of a tool that returns chunks as JSON, without its model Kompress, a download."""
    from headroom import compress as compress_messages

    def compress(row):
        chunks = [{"title": chunk.get("title"), "text": chunk["text"]} for chunk in row["chunks"]]
        call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        messages = [{"role": "user", "content": row["query"]}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "1", "content": json.dumps(chunks, ensure_ascii=False)}]  # fmt: skip
        context = compress_messages(messages, model="gpt-4o", protect_recent=0, target_ratio=SHARE).messages[-1]["content"]
        try:
            values = [value for item in json.loads(context) for value in item.values()]
        except ValueError:  # Headroom writes long lists with one line for each chunk.
            values = [value for line in csv.reader(context.splitlines(keepends=True)[1:]) for value in line if value != "null"]
        return {"context": context, "text": "\n".join(str(value) for value in values if value and "<<ccr:" not in str(value))}

    return compress


def headroom_text(_):
    """Headroom's extractive compressor for prose, which needs no model and is not a part of compress() by default."""
    from headroom.transforms.text_crusher import TextCrusher, TextCrusherConfig

    crusher = TextCrusher(TextCrusherConfig(target_ratio=SHARE))
    return lambda row: {"context": crusher.compress(joined(row), context=row["query"]).compressed}


def provence(path):
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, trust_remote_code=True).eval()
    return lambda row: {"context": "\n\n".join(
        filter(None, (model.process(row["query"], full_text(chunk))["pruned_context"] for chunk in row["chunks"])))}  # fmt: skip


QUARTER = {"budget": {"ratio": SHARE}}
METHODS = {  # name for --methods: label, whether it is slow, option with the model that the user brings, what makes it
    "thresher": ("Thresher 1/4", False, None, lambda args: thresher(args, **QUARTER)),
    "thresher-again": ("Thresher 1/4 again", False, None, lambda args: thresher(args, **QUARTER)),
    "thresher-auto": ("Thresher auto", False, None, thresher),
    "thresher-chunks": ("Thresher chunks", False, None, lambda args: thresher(args, granularity="chunk", **QUARTER)),
    "bm25": ("BM25 sentences", False, None, lambda _: ranked(score_bm25, sentences_of)),
    "bm25-chunks": ("BM25 chunks", False, None, lambda _: ranked(score_bm25, chunks_of)),
    "cosine": ("cosine sentences", False, None, lambda _: ranked(cosine_scorer(), sentences_of)),
    "cosine-chunks": ("cosine chunks", False, None, lambda _: ranked(cosine_scorer(), chunks_of)),
    "headroom": ("Headroom, JSON", False, None, headroom),
    "headroom-text": ("Headroom TextCrusher", False, None, headroom_text),
    "llmlingua": ("LLMLingua, SmolLM2", True, None, lambda args: llmlingua(smollm2(args), {"concate_question": False})),
    "longllmlingua": ("LongLLMLingua, SmolLM2", True, None, lambda args: llmlingua(smollm2(args), LONG)),
    "selective": ("Selective Context", True, None, selective_context),
    "llmlingua2": ("LLMLingua-2", True, "llmlingua2", lambda args: llmlingua(args.llmlingua2, LINGUA2, use_llmlingua2=True)),
    "provence": ("Provence", True, "provence", lambda args: provence(args.provence)),
    "open-provence": ("OpenProvence", True, "open_provence", lambda args: provence(args.open_provence)),
    "cross": ("cross-encoder sentences", True, None, lambda args: ranked(cross_encoder_scorer(args), sentences_of)),
    "cross-chunks": ("cross-encoder chunks", True, None, lambda args: ranked(cross_encoder_scorer(args), chunks_of)),
}


def run(args, sets, records):
    for method in args.methods:
        _, slow, option, make = METHODS[method]
        # Row by row over all sets: a run that is stopped has covered the same rows of each set.
        todo = [(name, at) for at in range(args.slow_rows if slow else args.rows) for name, rows in sets.items()
                if at < len(rows) and (args.again or (name, at, method) not in records)]  # fmt: skip
        if not todo or (option and not getattr(args, option)):
            continue
        compress = make(args)
        compress(WARM_UP)
        for name, at in todo:
            start = time.perf_counter()
            found = compress(sets[name][at])
            found.update(set=name, row=at, method=method, seconds=time.perf_counter() - start)
            records[name, at, method] = found
            with (args.work / "rows.jsonl").open("a") as out:
                print(json.dumps(found), file=out)


def plain(record):
    """The text of a context, without the citation markers and the marks of left-out text that Thresher adds."""
    text = re.sub(r"\[… ?(\d+ lines?)?\]", "…", record.get("text", record["context"]))
    return re.sub(r"^\[\d+(:\w+)?\] ", "", text, flags=re.MULTILINE) if record["method"].startswith("thresher") else text


def misleading_joins(text, row):
    """The parts of a text that no source says."""
    sources = [squeeze(full_text(chunk)) for chunk in row["chunks"]]
    titles = [squeeze(chunk.get("title") or "") for chunk in row["chunks"]]
    parts = re.split(r"(?<=[.!?])[\"'”’)\]]*\s+|\n|…", text)
    parts = [squeeze(part) for part in parts if len(re.findall(r"\w+", part)) >= 3]
    return [part for part in parts if part not in titles and not any(part in source for source in sources)]


def summarize(rows, ours):
    seconds = [row["seconds"] for row in rows.values() if row.get("cold") or rows is not ours]
    pairs, rng = [ours[at]["kept"] - row["kept"] for at, row in rows.items() if at in ours] or [0], random.Random(0)
    means = sorted(statistics.fmean(rng.choices(pairs, k=len(pairs))) for _ in range(2000))
    return {
        "rows": len(rows),
        "kept": statistics.fmean(row["kept"] for row in rows.values()),
        "tokens": sum(row["out"] for row in rows.values()) / sum(row["in"] for row in rows.values()),
        "joins": statistics.fmean(row["joins"] for row in rows.values()),
        "seconds": statistics.median(seconds) if seconds else None,
        "thresher_minus_this": [statistics.fmean(pairs), means[49], means[1949]],
    }


def report(args, sets, records):
    found, tables = {}, {}
    for (name, at, method), record in records.items():
        if at < len(sets.get(name, [])):
            row, text = sets[name][at], plain(record)
            measured = {"kept": is_kept(text, row), "joins": bool(misleading_joins(text, row)), "in": row["tokens"],
                        "out": count_tokens(record["context"]), **record}  # fmt: skip
            for group in (name, "all sets"):
                found.setdefault(group, {}).setdefault(method, {})[name, at] = measured
    lines = [f"Table of benches/peers.py, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores.", *args.note]
    for group in filter(found.get, (*sets, "all sets")):
        by_method, table = found[group], tables.setdefault(group, {})
        lines += ["", f"{group:<24} rows   kept tokens  joins seconds  Thresher 1/4 minus this"]
        for method in filter(by_method.get, METHODS):
            row = table[METHODS[method][0]] = summarize(by_method[method], by_method.get("thresher", {}))
            seconds = "-" if row["seconds"] is None else f"{row['seconds']:.3f}"
            numbers = f"{row['rows']:>4}  {row['kept']:5.3f}  {row['tokens']:5.3f}  {row['joins']:5.3f} {seconds:>7}"
            difference = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["thresher_minus_this"])
            lines.append(f"{METHODS[method][0]:<24} {numbers}  {difference}")
    lines += ["", "Model not given: " + ", ".join(
        label for name, (label, _, option, _) in METHODS.items() if option and name not in found["all sets"])]  # fmt: skip
    print("\n".join(lines))
    if args.out:
        args.out.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        args.out.with_suffix(".json").write_text(json.dumps({"note": args.note, "sets": tables}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="NAME:FILE", help="rows as JSON lines")
    parser.add_argument("--work", type=Path, required=True, help="folder for rows.jsonl and the converted model")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the daemon")
    parser.add_argument("--methods", help=f"some of: {','.join(METHODS)}; the default is all but Headroom's")
    parser.add_argument("--rows", type=int, default=60, help="rows of each set")
    parser.add_argument("--slow-rows", type=int, default=20, help="rows of each set for methods with a large model")
    parser.add_argument("--again", action="store_true", help="run rows again that rows.jsonl has")
    for option in ("--llmlingua2", "--provence", "--open-provence"):
        parser.add_argument(option, help="folder of the model")
    parser.add_argument("--out", type=Path, help="write the report to OUT.txt and OUT.json")
    parser.add_argument("--note", action="append", default=[], help="a line for the head of the report")
    args = parser.parse_args()
    args.methods = args.methods.split(",") if args.methods else [name for name in METHODS if not name.startswith("headroom")]
    os.environ["HEADROOM_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
    args.work.mkdir(parents=True, exist_ok=True)
    sets = {name: load_rows(path, args.rows) for name, path in (each.split(":", 1) for each in args.sets)}
    (args.work / "rows.jsonl").touch()
    read = map(json.loads, (args.work / "rows.jsonl").read_text().splitlines())
    records = {(record["set"], record["row"], record["method"]): record for record in read}
    run(args, sets, records)
    report(args, sets, records)


if __name__ == "__main__":
    main()
