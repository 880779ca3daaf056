"""From a retriever to an answer with citations and verdicts, with any model behind an API like OpenAI's."""

import os

import openai
from thresher_client import Client, ThresherError

CHUNKS = [
    {"id": "light", "text": "The lighthouse at Cape Orrin was built in 1874. It was automated in 1991. Its keeper had two dogs and a boat."},
    {"id": "harbour", "text": "The harbour at Cape Orrin was dredged in 1921. Fish is sold there on Fridays."},
    {"id": "trains", "text": "Trains leave at 7:15 and 9:40. Bikes cost 3 euros."},
]
llm = openai.OpenAI(base_url=os.environ.get("LLM_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("LLM_KEY", "none"))
thresher = Client(timeout_s=10)  # THRESHER_URL, or http://127.0.0.1:8080


def retrieve(question: str) -> list[dict[str, str]]:
    """Replace this with your retriever."""
    words = set(question.lower().split())
    return sorted(CHUNKS, key=lambda chunk: -len(words & set(chunk["text"].lower().split())))


def ask(question: str, context: str) -> str:
    prompt = f"Answer the question from the context only.\n\n{context}\n\nQuestion: {question}"
    try:
        response = llm.chat.completions.create(
            model=os.environ.get("LLM_MODEL", "NAME"), messages=[{"role": "user", "content": prompt}]
        )
    except openai.OpenAIError as error:
        raise SystemExit(f"The model at {llm.base_url} failed: {error} Check LLM_URL, LLM_MODEL and LLM_KEY.") from None
    return response.choices[0].message.content or ""


def ask_with_all_chunks(question: str) -> str:
    return ask(question, "\n\n".join(chunk["text"] for chunk in retrieve(question)))


def ask_and_check(question: str) -> str:
    # Step 1: fewer tokens
    chunks = retrieve(question)
    found = thresher.compress(question, chunks)
    if found.usage:  # None only with on_error="passthrough"
        print(f"{found.usage.tokens_in} tokens retrieved, {found.usage.tokens_out} tokens sent:\n{found.context}\n")
    if not found.context:
        return "No document is about this question."

    # Step 2: citations and verdicts
    answer = ask(question, found.context)
    checked = thresher.attribute(answer, compress_id=found.id)
    for part in checked.parts:
        print(part.verdict, [source.chunk for source in part.sources if source.cited], part.text.strip())
        for conflict in part.conflicts:
            print(f"  the answer says {conflict.text}, {conflict.chunk} says {conflict.source.text}")
    if any(part.verdict == "contradicted" for part in checked.parts):
        return f"Not certain, see the sources: {answer}"
    return answer


question = "When was the lighthouse at Cape Orrin built and automated?"
# Step 3: a fallback
try:
    answer = ask_and_check(question)
except ThresherError as error:  # the daemon is down, busy or late
    print("without Thresher:", error.code)
    answer = ask_with_all_chunks(question)
print(f"\n{answer}")
