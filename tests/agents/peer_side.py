"""Compresses conversations with a library: reads lists of messages from the standard input, as JSON, and writes the compressed lists.

usage: peer_side.py PEER

None of the libraries has a model here: Headroom would fetch Kompress, its model for prose, from a hub at run time, and so would it the vocabulary of
its tokenizer, for which it uses an estimate. Its compressors of logs, tables, JSON, code and diffs need no model, nor does what the others do.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

Messages = list[dict[str, Any]]

os.environ.update(HEADROOM_OFFLINE="1", HF_HUB_OFFLINE="1", HEADROOM_TELEMETRY="off")
logging.disable(logging.CRITICAL)


def headroom(messages: Messages) -> Messages:
    import headroom as library

    return library.compress(messages, model="gpt-4o").messages


def headroom_densify(messages: Messages) -> Messages:
    import headroom as library

    return library.densify(messages, model="gpt-4o").messages


def distil(messages: Messages) -> Messages:
    from distil import compress_messages

    return compress_messages(messages).messages


def distil_verbatim(messages: Messages) -> Messages:
    from distil import compress_messages

    return compress_messages(messages, verbatim=True).messages


def llmslim(messages: Messages) -> Messages:
    from llmslim import compress_chat_messages

    # As much as Thresher saves by default.
    return compress_chat_messages(messages, target_ratio=0.7, compressible_roles=("tool",))


PEERS: dict[str, Callable[[Messages], Messages]] = {
    "headroom": headroom, "headroom-densify": headroom_densify, "distil": distil, "distil-verbatim": distil_verbatim, "llmslim": llmslim,
}

if __name__ == "__main__":
    compress = PEERS[sys.argv[1]]
    json.dump([compress(messages) for messages in json.load(sys.stdin)], sys.stdout)
