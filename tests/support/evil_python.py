"""
What a hostile node runs instead of Python: it passes the probe, takes the agent's command line, and says what its case says.

    evil_python.py CASE -I -S -c PROGRAM PATH SHA256 bridge

Standard library only; it runs on its own and is imported for `CASES`.
"""

import json
import os
import sys
import time


def _hello(sha, case, **odd):
    ids = {"agent": sha, "version": "1", "boot_id": "boot-" + case, "machine_id": "machine-" + case, "hostname": "evil", "python": "3.11"}
    return {**ids, "uid": 0, "notes": [], "frailties": [], "mono": time.monotonic(), "wall": time.time(), **odd}


def _out(data):
    sys.stdout.buffer.write(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n")
    sys.stdout.buffer.flush()


def _ask():
    return json.loads(sys.stdin.buffer.readline())["id"]


def _forever(data):
    while True:
        _out(data)


def _drip():
    for byte in b"x" * 10_000:
        _out(bytes([byte]))
        time.sleep(1.0)


def _answer_raw(ok):
    _out(b'{"id": %d, "ok": %s}\n' % (_ask(), ok))
    time.sleep(600)


def _flood_of_errors(_sha, _case):
    while True:
        sys.stderr.buffer.write(b"x" * 65536)


def _pause(sha, case):
    _out({"id": _ask(), "ok": _hello(sha, case)})
    time.sleep(600)


# Never come as far as a greeting.
AT_HELLO = {
    "gigabyte-line": lambda sha, case: _forever(b"x" * 65536),
    "noise": lambda sha, case: _forever(b"Welcome!\n" * 7000),
    "json-noise": lambda sha, case: _forever(b'{"event": "lines", "stream": "s"}\n' * 2000),
    "drip": lambda sha, case: _drip(),
    "silence": lambda sha, case: time.sleep(600),
    "end": lambda sha, case: None,
    "deep": lambda sha, case: _answer_raw(b"[" * 200_000),
    "nan": lambda sha, case: _answer_raw(b'{"mono": NaN}'),
    "infinity": lambda sha, case: _answer_raw(b'{"mono": -Infinity}'),
    "huge-int": lambda sha, case: _answer_raw(json.dumps(_hello(sha, case)).replace('"mono": ', '"mono": 1' + "0" * 400).encode()),
    "huge-mono": lambda sha, case: _answer_raw(json.dumps(_hello(sha, case, mono=1e300)).encode()),
    "wrong-id": lambda sha, case: _out({"id": _ask() + 77, "ok": _hello(sha, case)}) or time.sleep(600),
    "answer-first": lambda sha, case: _out({"id": 7, "ok": _hello(sha, case)}) or time.sleep(600),
    "twice": lambda sha, case: [_out({"id": number, "ok": _hello(sha, case)}) for number in [_ask()] * 2] and time.sleep(600),
    "duplicate-keys": lambda sha, case: _answer_raw(b'{"mono": 1, "mono": 2}'),
    "invalid-utf8": lambda sha, case: _answer_raw(b'{"agent": "\xff\xfe"}'),
    "half-pair": lambda sha, case: _answer_raw(b'{"agent": "\\ud800"}'),
    "list": lambda sha, case: _answer_raw(b"[]"),
    "wrong-types": lambda sha, case: _answer_raw(json.dumps(_hello(sha, case, boot_id=["x"], uid="0")).encode()),
    "huge-error": lambda sha, case: _out({"id": _ask(), "error": {"kind": "k", "what": "w" * 900_000}}) or time.sleep(600),
    "other-agent": lambda sha, case: [_out({"id": _ask(), "ok": _hello("0" * 64, case)}) for _ in range(7)] and time.sleep(600),
    "stderr": _flood_of_errors,
    "binary": lambda sha, case: _forever(os.urandom(65536)),
    "mute-clock": _pause,
}


def _after(ok_of):
    """Greet as an honest node, then answer everything by a function of the request."""

    def case(sha, name):
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if request["do"] in ("hello", "clock") and not request.get("entry"):
                _out({"id": request["id"], "ok": _hello(sha, name)})
            else:
                ok_of(request)

    return case


def _evidence(holds):
    return {"holds": holds, "says": "all is well"}


def _stamp(request, away, **more):
    now = time.monotonic() + away
    _out({"id": request["id"], "ok": {"before": now, "after": now, "evidence": _evidence(holds=True), **more}})


def _events(request):
    for _ in range(20):
        _out(json.dumps({"event": "lines", "stream": "none", "lines": ["x" * 1000] * 200}).encode() + b"\n")
    _out({"id": request["id"], "ok": {}})


# Greet, and lie afterwards.
AFTER_HELLO = {
    "empty-answers": _after(lambda request: _out({"id": request["id"], "ok": {}})),
    "future-stamps": _after(lambda request: _stamp(request, 3600.0)),
    "past-stamps": _after(lambda request: _stamp(request, -3600.0)),
    "endless-stamps": _after(lambda request: _out({"id": request["id"], "ok": {"before": 1e200, "after": 1e300}})),
    "backward-stamps": _after(lambda request: _out({"id": request["id"], "ok": {"before": time.monotonic(), "after": 0.0}})),
    "texts-for-truth": _after(lambda request: _out({"id": request["id"], "ok": {"evidence": {"holds": "yes", "says": 1}}})),
    "events": _after(_events),
}

CASES = {**AT_HELLO, **AFTER_HELLO}


def main(argv):
    case, program, rest = argv[0], argv[4], argv[5:]
    if "version_info[1]" in program:
        print("3.11 {}".format(os.path.join(os.path.dirname(sys.argv[0]), case)))
        return
    CASES[case](rest[1], case)


if __name__ == "__main__":
    main(sys.argv[1:])
