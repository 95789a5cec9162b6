"""Abort conditions that others answer: real programs, a real HTTP server, and every order in which answers may come or not."""

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fair_watch import FairWatch, until
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.engine.aborts import Answer, Program, Question, Watch, Watches, decide, on_a_thread, values_of
from chaoskit.errors import RefusedError
from chaoskit.model.experiment import Abort, Command, Query

PATIENT = 30.0
"""Seconds that a loaded machine may take for what takes milliseconds."""


def asked(*argv, within=PATIENT):
    return Program(Command(tuple(map(str, argv)), within=within)).ask()


# -- a program -----------------------------------------------------------------------------------------------------


def test_a_program_decides_by_its_exit_code():
    assert Answer() == asked("true")
    assert Answer("exit code 7: the fabric is on fire") == asked("sh", "-c", "echo the fabric; echo is on fire >&2; exit 7")
    assert Answer("ended by SIGKILL") == asked("sh", "-c", "kill -9 $$")


@pytest.mark.parametrize("program", ["/nonexistent/check", "/etc/passwd", "x\0y"])
def test_a_program_that_cannot_be_started_ends_the_run_at_once(program):
    """It will never answer: nobody would watch."""
    assert asked(program).why.startswith("it cannot be started: ")


def test_its_arguments_are_no_shells(tmp_path):
    asked("echo", f"$(touch {tmp_path}/a)", ";", "touch", tmp_path / "b")

    assert [] == list(tmp_path.iterdir())


def gone(path):
    return path.exists() and path.read_text() and not Path(f"/proc/{path.read_text().strip()}/cmdline").exists()


def test_at_its_deadline_it_is_killed_with_all_that_it_started(tmp_path):
    pids = tmp_path / "child", tmp_path / "parent"
    script = f"sleep 1000 & echo $! >{pids[0]}; echo $$ >{pids[1]}; echo waiting; sleep 1000"
    answer = asked("sh", "-c", script, within=1.0)

    assert Answer(missing="it took longer than 1 s and was killed: waiting") == answer
    for path in pids:
        until(lambda path=path: gone(path), what=f"{path.name} lives")


def test_what_it_leaves_in_its_group_is_killed_and_not_waited_for(tmp_path):
    """A child in the background holds its output open."""
    watch = FairWatch()
    answer = asked("sh", "-c", f"sleep 1000 & echo $! >{tmp_path}/child")

    assert Answer() == answer
    assert watch.took() < PATIENT
    until(lambda: gone(tmp_path / "child"), what="the child lives")


def test_a_flood_of_output_is_read_and_not_kept():
    answer = asked("sh", "-c", "yes flood | head -c 50000000; exit 3")

    assert answer.why.startswith("exit code 3: flood flood")
    assert len(answer.why) < 300


def test_it_has_no_input_and_no_terminal():
    """One that asks a question hears the end of its input, and never waits for an answer."""
    assert Answer("exit code 1") == asked("sh", "-c", "read line && exit 0; exit 1")
    assert Answer("exit code 2") == asked("python3", "-c", "import os,sys; sys.exit(2 if os.getsid(0) == os.getpid() else 0)")


def test_a_program_is_ended_with_the_run(tmp_path):
    program = Program(Command(("sh", "-c", f"echo $$ >{tmp_path}/pid; sleep 1000"), within=900.0))
    future = on_a_thread(program.ask)
    until((tmp_path / "pid").exists, what="it never ran")
    until((tmp_path / "pid").read_text, what="it wrote nothing")
    program.stop()

    assert Answer() == future.result(PATIENT)
    assert gone(tmp_path / "pid")
    assert Answer() == program.ask()
    assert not program._child


class Unkillable:
    """A program that the kernel does not let go of yet, as one that reads from a dead file server."""

    def __init__(self):
        self.pid = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
        self.released = threading.Event()

    def wait(self):
        self.released.wait()


def test_a_program_that_does_not_die_keeps_nobody_from_ending_the_run():
    """It gets its signal, and is waited for by nobody who has to revert."""
    program = Program(Command(("true",), within=1.0))
    child = program._child = Unkillable()
    stopping = threading.Thread(target=program.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENT)
    held = stopping.is_alive()
    child.released.set()

    assert not held
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == -signal.SIGKILL


# -- a Prometheus --------------------------------------------------------------------------------------------------


@contextmanager
def server(answer):
    """Run an HTTP server; `answer` is called with each request's handler."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            answer(self)

        def log_message(self, *_):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", seen
    finally:
        made.shutdown()
        made.server_close()


def says(body, status=200, **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    return answer


def vector(*values):
    result = [{"metric": {"node": f"n{at}"}, "value": [1.0, str(value)]} for at, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def put(answer, *, token="", **query):
    query.setdefault("above", 5.0)
    with server(answer) as (url, seen):
        return Question(Query("sum(errors) > 0", url=url, within=PATIENT, **query), token).ask(), seen


def test_a_value_beyond_its_limit_ends_the_run():
    assert Answer("it is 6") == put(says(vector(1, 6)))[0]
    assert Answer() == put(says(vector(1, 5)))[0]
    assert Answer("it is 0.5") == put(says(vector(3, 0.5)), below=1.0)[0]
    assert Answer("it is 1") == put(says(vector(0, 1)), above=None)[0]
    assert Answer() == put(says(vector(0)), above=None)[0]
    assert Answer("it is 9") == put(says({"status": "success", "data": {"resultType": "scalar", "result": [1.0, "9"]}}))[0]


def test_no_value_is_no_answer_where_there_is_a_limit_and_well_where_there_is_none():
    """An alert's expression has no result as long as all is well; a rate without one is not measured."""
    assert Answer(missing="its result has no value") == put(says(vector()))[0]
    assert Answer() == put(says(vector()), above=None)[0]
    assert Answer(missing="a value of its result is no number") == put(says(vector("NaN")))[0]
    assert Answer(missing="a value of its result is no number") == put(says(vector("NaN")), above=None)[0]


def test_what_is_asked_is_the_query_and_the_token_is_sent_along():
    _, seen = put(says(vector(0)), token="geheim")

    path, headers = seen[0]
    assert path == "/api/v1/query?query=sum%28errors%29+%3E+0&timeout=30000ms"
    assert "Bearer geheim" == headers["Authorization"]
    assert "Authorization" not in put(says(vector(0)))[1][0][1]


def test_a_redirect_is_not_followed():
    """It would take the token to whoever the server names."""
    with server(says(vector(9))) as (elsewhere, seen):
        answer, _ = put(says(b"", 302, Location=elsewhere), token="geheim")

    assert "302" in answer.missing
    assert [] == seen


BROKEN = {
    "an error of the server": says(b"no", 500),
    "a query that fails": says({"status": "error", "errorType": "bad_data", "error": "parse\nerror"}),
    "no JSON": says(b"<html>"),
    "no object": says([1]),
    "a matrix": says({"status": "success", "data": {"resultType": "matrix", "result": []}}),
    "no data": says({"status": "success"}),
    "values of another shape": says({"status": "success", "data": {"resultType": "vector", "result": [{"value": [1]}, 7]}}),
    "a value that is no number": says(vector("many")),
    "no text": says(b"\xff\xfe\x00"),
    "gigabytes": lambda handler: [says(b"[")(handler), [handler.wfile.write(b" " * 65536) for _ in range(64)]],
    "nothing at all": lambda handler: handler.connection.close(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_answer_says_nothing(name):
    answer, _ = put(BROKEN[name])

    assert "" == answer.why
    assert answer.missing
    assert "\n" not in answer.missing


def test_a_server_that_is_not_there_is_no_answer():
    with server(says(vector(0))) as (url, _):
        pass

    assert "refused" in Question(Query("up", url=url, above=1.0), "").ask().missing


def test_a_server_that_dribbles_is_given_up_at_the_deadline():
    """Each byte comes in time, and the answer never does."""

    def dribble(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:
            pass

    with server(dribble) as (url, _):
        answer = Question(Query("up", url=url, above=1.0, within=0.5)).ask()

    assert "no whole answer within 0.5 s" in answer.missing


def test_a_secret_comes_from_the_environment_alone(monkeypatch):
    query = Query("up", url="http://127.0.0.1:1", token_env="CHAOSKIT_TEST_TOKEN", above=1.0)
    monkeypatch.delenv("CHAOSKIT_TEST_TOKEN", raising=False)
    with pytest.raises(RefusedError, match="CHAOSKIT_TEST_TOKEN is not set"):
        Watches(Abort(queries=(query,)))

    monkeypatch.setenv("CHAOSKIT_TEST_TOKEN", "a\r\nX-Evil: 1")
    with pytest.raises(RefusedError, match="holds is no token") as refused:
        Watches(Abort(queries=(query,)))
    assert "Evil" not in str(refused.value)

    monkeypatch.setenv("CHAOSKIT_TEST_TOKEN", "geheim")
    Watches(Abort(queries=(query,)))


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["status", "data", "result", "resultType", "value"]), inner),
    )
)
def test_whatever_a_server_says_is_an_answer_or_none(answer):
    try:
        values = values_of(answer)
    except ValueError:
        return
    decide(Query("q", above=1.0, below=0.0), values)


# -- in what order answers come ------------------------------------------------------------------------------------


class Asked:
    """Somebody who answers when the test says so."""

    says, every, within, tries = "the condition", 10.0, 5.0, 3

    def __init__(self):
        self.open = []

    def start(self, _):
        self.open.append(Future())
        return self.open[-1]

    def ask(self):
        raise AssertionError("asked on the engine's own thread")

    def stop(self):
        pass


OK, MISSING, NO, SILENT = Answer(), Answer(missing="away"), Answer(why="it burns"), None


@given(st.lists(st.tuples(st.sampled_from([OK, MISSING, NO, SILENT]), st.floats(0.0, 40.0)), max_size=25), st.floats(0.05, 3.0))
def test_the_run_ends_by_a_no_or_by_the_third_silence_in_a_row_and_by_nothing_else(answers, tick):
    """Whenever each answer comes, and however rarely anybody looks; and nobody is asked while he is asked."""
    asked, now, why = Asked(), 0.0, ""
    watch = Watch(asked, asked.start)

    def wait(over):
        nonlocal now, why
        while not why and not over():
            now += tick
            why = watch.why(now)

    for answer, delay in answers:
        count = len(asked.open)
        wait(lambda count=count: len(asked.open) > count)
        sent = now
        wait(lambda sent=sent, delay=delay: now >= sent + delay)
        if why:
            break
        if answer is SILENT:
            wait(lambda: False)
            break
        asked.open[-1].set_result(answer)
        why = watch.why(now)
        if answer is NO:
            assert "it burns" in why
            return
        if answer is OK and now - sent <= asked.within:
            assert "" == why
        if why:
            break
    if why:
        assert "3 times in a row" in why
    assert sum(not future.done() for future in asked.open) <= 1


def test_a_good_answer_in_time_forgets_the_missing_ones():
    asked, now = Asked(), 0.0
    watch = Watch(asked, asked.start)
    for answer in (MISSING, MISSING, OK, MISSING, MISSING, OK):
        assert "" == watch.why(now)
        asked.open[-1].set_result(answer)
        assert "" == watch.why(now + 1)
        now += 10
    for number in range(3):
        assert "" == watch.why(now)
        asked.open[-1].set_result(MISSING)
        why = watch.why(now + 1)
        assert ("" == why) == (number < 2)
        now += 10
    assert "the condition: nobody can say whether the run may go on, 3 times in a row: away" == why


def test_one_that_hangs_is_not_asked_again_and_ends_the_run():
    asked = Asked()
    watch = Watch(asked, asked.start)
    found = [(now, why) for now in range(60) if (why := watch.why(float(now)))]

    assert 1 == len(asked.open)
    assert 20 == found[0][0]
    assert "3 times in a row: no answer within 5 s" in found[0][1]


def test_a_no_that_comes_late_is_a_no():
    asked = Asked()
    watch = Watch(asked, asked.start)
    assert "" == watch.why(0.0) == watch.why(8.0)
    asked.open[-1].set_result(NO)

    assert "the condition: it burns" == watch.why(9.0)


def test_asking_never_keeps_the_loop_waiting(tmp_path):
    """A program that hangs costs the loop that renews leases nothing."""
    os.mkfifo(tmp_path / "never")
    watches = Watches(Abort(commands=(Command(("cat", str(tmp_path / "never")), every=1.0, within=1.0, tries=2),)))
    worst, why, began = 0.0, "", time.monotonic()
    try:
        while not why and time.monotonic() < began + PATIENT:
            at = time.thread_time()
            why = watches.why(time.monotonic())
            worst = max(worst, time.thread_time() - at)
            time.sleep(0.02)
    finally:
        watches.close()

    assert "2 times in a row: it took longer than 1 s and was killed" in why
    assert worst < 0.5
