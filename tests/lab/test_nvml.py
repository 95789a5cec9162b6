"""The simulated NVML, asked by NVIDIA's own pynvml: what it answers, how its GPUs behave, and every way in which they fail."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.errors import RefusedError
from chaoskit.lab import nvml, requirements
from chaoskit.lab.gpus import BOARD, FAILURES, Gpus

ASK = """
import json, os, sys
import pynvml as n

def tried(function, *arguments):
    try:
        answer = function(*arguments)
    except n.NVMLError as error:
        return type(error).__name__.replace("NVMLError_", "")
    return answer if isinstance(answer, (int, str, list, type(None))) else str(answer)

def handle(index):
    try:
        return n.nvmlDeviceGetHandleByIndex(index)
    except n.NVMLError:
        return None

n.nvmlInit()
gpu = [handle(0), handle(1)]
"""
IDLE, LOCKED, POWER_CAP = 0x1, 0x2, 0x4


@pytest.fixture
def ask(gpus, nvml_library):
    """Return a function that evaluates an expression, after some lines, in a process that has NVML open."""

    def ask(expression, lines="", state=gpus):
        script = f"{ASK}{lines}\nprint(json.dumps({expression}))"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=state.environment(nvml_library)
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


@pytest.fixture
def worker(gpus):
    """Let a process compute on GPU 0."""
    process = subprocess.Popen(["sleep", "600"])
    gpus.add_client(process.pid, 0)
    yield process
    process.kill()
    process.wait()


def getters(*names):
    return "{" + ", ".join(f"'{name}': tried(n.nvmlDeviceGet{name}, gpu[GPU])" for name in names) + "}"


IDENTITY = ("Name", "UUID", "Serial", "BoardPartNumber", "BoardId", "Index", "MinorNumber")
READINGS = (
    *("UtilizationRates", "MigMode", "PersistenceMode", "ComputeMode", "PerformanceState", "MemoryInfo"),
    *("ComputeRunningProcesses", "MPSComputeRunningProcesses", "GraphicsRunningProcesses"),
)
POWER = (
    *("PowerUsage", "PowerManagementLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints", "EnforcedPowerLimit"),
    *("PowerManagementMode", "CurrentClocksEventReasons", "CurrentClocksThrottleReasons", "SupportedClocksEventReasons"),
    *("SupportedClocksThrottleReasons", "TotalEnergyConsumption"),
)


def test_the_driver_tells_its_versions_and_its_gpus(ask):
    versions = "[n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(), n.nvmlSystemGetCudaDriverVersion(), n.nvmlDeviceGetCount()]"

    assert ["580.95.05", "13.580.95.05", 13000, 2] == ask(versions)


def test_a_gpu_is_found_by_index_uuid_and_bus(ask, gpus):
    """In either length of the PCI address; what there is not is not found."""
    uuid = gpus.read(1)["uuid"]
    found = ask(
        "[n.nvmlDeviceGetIndex(one) for one in ways] + wrong",
        f"""
ways = [gpu[1], n.nvmlDeviceGetHandleByUUID(b"{uuid}")]
ways += [n.nvmlDeviceGetHandleByPciBusId(bus) for bus in (b"00000000:27:00.0", b"0000:27:00.0", n.nvmlDeviceGetPciInfo(gpu[1]).busId)]
wrong = [tried(n.nvmlDeviceGetHandleByUUID, b"GPU-0"), tried(n.nvmlDeviceGetHandleByPciBusId, b"0000:99:00.0")]
wrong.append(tried(n.nvmlDeviceGetHandleByIndex, 2))
""",
    )

    assert [1, 1, 1, 1, 1, "NotFound", "NotFound", "InvalidArgument"] == found


def test_an_idle_gpu_answers_all_that_is_asked(ask, gpus):
    seen = ask(getters(*IDENTITY, *READINGS, *POWER).replace("GPU]", "1]"))
    own = gpus.read(1)

    assert [own["name"], own["uuid"], own["serial"], own["part"], 0x2700, 1, 1] == [seen[name] for name in IDENTITY]
    assert ([0, 0], 1, 0, 8) == tuple(seen[name] for name in ("MigMode", "PersistenceMode", "ComputeMode", "PerformanceState"))
    assert "gpu: 0 %" in seen["UtilizationRates"]
    assert [[], [], []] == [seen[name] for name in READINGS[-3:]]
    assert [70_000, 700_000, 700_000, [200_000, 700_000], 700_000, 1] == [seen[name] for name in POWER[:6]]
    assert [IDLE, IDLE, 0x1FF, 0x1FF] == [seen[name] for name in POWER[6:10]]


def test_a_working_gpu_draws_power_and_names_its_processes(ask, worker):
    lines = """
memory, newer = n.nvmlDeviceGetMemoryInfo(gpu[0]), n.nvmlDeviceGetMemoryInfo(gpu[0], n.nvmlMemory_v2)
clocks = [n.nvmlDeviceGetClockInfo(gpu[0], kind) for kind in (n.NVML_CLOCK_SM, n.NVML_CLOCK_GRAPHICS, n.NVML_CLOCK_MEM)]
clocks += [n.nvmlDeviceGetMaxClockInfo(gpu[0], n.NVML_CLOCK_SM), n.nvmlDeviceGetClock(gpu[0], n.NVML_CLOCK_SM, 0)]
heat = [n.nvmlDeviceGetTemperature(gpu[0], n.NVML_TEMPERATURE_GPU), n.nvmlDeviceGetTemperatureV(gpu[0], n.NVML_TEMPERATURE_GPU)]
supported = n.nvmlDeviceGetSupportedGraphicsClocks(gpu[0], n.nvmlDeviceGetSupportedMemoryClocks(gpu[0])[0])
processes = [(one.pid, one.usedGpuMemory) for one in n.nvmlDeviceGetComputeRunningProcesses(gpu[0])]
usage = [n.nvmlDeviceGetUtilizationRates(gpu[0]).gpu, n.nvmlDeviceGetPowerUsage(gpu[0]), n.nvmlDeviceGetCurrentClocksEventReasons(gpu[0])]
"""
    memory, clocks, heat, supported, processes, usage = ask(
        "[[memory.total, memory.used, memory.free, newer.total, newer.used], clocks, heat, supported, processes, usage]", lines
    )

    assert [80 << 30, 34 << 30, 46 << 30, 80 << 30, 34 << 30] == memory
    assert [1980, 1980, 2619, 1980, 1980] == clocks
    assert [58, 58] == heat
    assert (1980, 1965, 210) == (supported[0], supported[1], supported[-1])
    assert [[worker.pid, 34 << 30]] == processes
    assert [97, 620_000, 0] == usage


@pytest.mark.parametrize(
    ("limit", "clock", "draw", "reasons"),
    [
        (700_000, 1980, 620_000, 0),
        (620_000, 1980, 620_000, 0),
        (619_999, 1965, 611_698, POWER_CAP),
        (315_000, 1320, 314_444, POWER_CAP),
        (200_000, 960, 199_292, POWER_CAP),
    ],
)
def test_a_power_cap_lowers_the_clock_by_the_stated_law(ask, worker, gpus, limit, clock, draw, reasons):
    """The highest step of 15 MHz at which 70 W + 550 W * (clock / 1980 MHz)^2 is within the limit."""
    seen = ask(
        "[n.nvmlDeviceGetClockInfo(gpu[0], n.NVML_CLOCK_SM), n.nvmlDeviceGetPowerUsage(gpu[0]),"
        " n.nvmlDeviceGetCurrentClocksEventReasons(gpu[0]), n.nvmlDeviceGetPowerManagementLimit(gpu[0])]",
        f"n.nvmlDeviceSetPowerManagementLimit(gpu[0], {limit})",
    )

    assert [clock, draw, reasons, limit] == seen
    assert (limit, 700_000) == (gpus.read(0)["limit"], gpus.read(1)["limit"])


@pytest.mark.parametrize(
    ("lock", "limit", "clock", "reasons"),
    [
        ((210, 1200), 700_000, 1200, LOCKED),
        ((1200, 1207), 700_000, 1200, LOCKED),
        ((1980, 1980), 700_000, 1980, 0),
        ((210, 1500), 315_000, 1320, POWER_CAP),
        ((210, 1200), 315_000, 1200, LOCKED),
    ],
)
def test_a_locked_clock_holds_and_the_lower_of_lock_and_cap_counts(ask, worker, gpus, lock, limit, clock, reasons):
    gpus.edit(0, limit=limit)
    look = "[n.nvmlDeviceGetClockInfo(gpu[0], n.NVML_CLOCK_SM), n.nvmlDeviceGetCurrentClocksEventReasons(gpu[0])]"

    assert [clock, reasons] == ask(look, f"n.nvmlDeviceSetGpuLockedClocks(gpu[0], *{lock})")
    assert ask(look, "n.nvmlDeviceResetGpuLockedClocks(gpu[0])") == ask(look)
    assert (0, 0) == (gpus.read(0)["lock_low"], gpus.read(0)["lock_high"])


def test_a_stopped_or_dead_client_is_idle(ask, worker):
    """A stopped one still holds its memory; a dead one is nowhere."""
    look = "[n.nvmlDeviceGetPowerUsage(gpu[0]), len(n.nvmlDeviceGetComputeRunningProcesses(gpu[0]))]"
    assert [620_000, 1] == ask(look)

    worker.send_signal(signal.SIGSTOP)
    os.waitpid(worker.pid, os.WUNTRACED)
    assert [70_000, 1] == ask(look)

    worker.kill()  # and not reaped yet: a zombie holds nothing
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert [70_000, 0] == ask(look)


def test_an_mps_client_stands_in_its_own_list(ask, worker, gpus):
    gpus.add_client(worker.pid, 1, mps=True)

    lists = "[len(kind(gpu[1])) for kind in (n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetMPSComputeRunningProcesses)]"
    assert [0, 1] == ask(lists)


def test_a_partitioned_gpu_says_so(ask, gpus):
    gpus.edit(0, mig=1)

    assert [[1, 1], "NotSupported"] == ask("[n.nvmlDeviceGetMigMode(gpu[0]), tried(n.nvmlDeviceGetUtilizationRates, gpu[0])]")


def test_energy_and_capped_time_only_grow(ask, worker):
    lines = """
import time
def meters():
    return [n.nvmlDeviceGetTotalEnergyConsumption(gpu[0]), n.nvmlDeviceGetViolationStatus(gpu[0], 0).violationTime]
seen = [meters()]
for limit in (315000, 700000):
    n.nvmlDeviceSetPowerManagementLimit(gpu[0], limit)
    seen.append(meters())
    time.sleep(0.05)
    seen.append(meters())
"""
    energy, capped = zip(*ask("seen", lines), strict=True)

    assert sorted(energy) == list(energy)
    assert energy[2] - energy[1] >= 0.05 * 314_444 - 1  # mJ: at least the draw over the time slept
    assert capped[0] == 0
    assert capped[2] - capped[1] >= 50_000_000
    assert capped[4] == capped[3]


SET_LIMIT = "tried(n.nvmlDeviceSetPowerManagementLimit, gpu[1], 400000)"
SET_CLOCK = "tried(n.nvmlDeviceSetGpuLockedClocks, gpu[1], 210, 1200)"


@pytest.mark.parametrize(
    ("failure", "identity", "reading", "power", "setting"),
    [
        ("no_permission", True, True, True, "NoPermission"),
        ("not_supported", True, True, "NotSupported", "NotSupported"),
        ("unknown", True, "Unknown", "Unknown", "Unknown"),
    ],
)
def test_a_failing_gpu_fails_as_it_is_told_and_the_other_works(ask, gpus, failure, identity, reading, power, setting):
    gpus.edit(1, failure=failure)
    everything = f"[{getters(*IDENTITY)}, {getters(*READINGS)}, {getters(*POWER)}, [{SET_LIMIT}, {SET_CLOCK}]]"

    seen = ask(everything.replace("GPU]", "1]"))
    for answers, expected in zip((list(part.values()) for part in seen[:3]), (identity, reading, power), strict=True):
        assert expected is True or {expected} == set(answers)
        assert expected is not True or not {"NoPermission", "NotSupported", "Unknown"} & set(map(str, answers))
    assert [setting, setting] == seen[3]
    assert gpus.read(1)["limit"] == 700_000
    assert 70_000 == ask("n.nvmlDeviceGetPowerUsage(gpu[0])")


def test_a_lost_gpu_fails_every_call_also_through_an_old_handle(ask, gpus):
    lines = f"""
import re
path = {str(gpus.folder / "gpu1")!r}
text = open(path).read()
open(path, "w").write(re.sub("(?m)^failure .*$", "failure lost", text))
"""
    everything = getters(*IDENTITY, *READINGS, *POWER).replace("GPU]", "1]")

    seen = ask(f"[{everything}, {SET_LIMIT}, tried(n.nvmlDeviceGetHandleByIndex, 1), n.nvmlDeviceGetCount()]", lines)
    assert {"GpuIsLost"} == {*seen[0].values(), seen[1], seen[2]}
    assert seen[3] == 2


def test_a_failure_can_be_narrowed_to_some_functions(ask, gpus):
    gpus.edit(1, failure="unknown", failing="nvmlDeviceSetPower")

    assert ["Unknown", None, 700_000] == ask(f"[{SET_LIMIT}, {SET_CLOCK}, n.nvmlDeviceGetPowerManagementLimit(gpu[1])]")


@pytest.mark.row("L41")
def test_a_hanging_gpu_hangs_its_caller_who_can_be_killed(gpus, nvml_library):
    gpus.edit(1, failure="hang")
    script = f"{ASK}\nprint('asks', flush=True)\nn.nvmlDeviceGetPowerUsage(gpu[1])\nprint('answered')"
    asking = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=gpus.environment(nvml_library))
    assert asking.stdout.readline() == "asks\n"

    with pytest.raises(subprocess.TimeoutExpired):
        asking.wait(timeout=0.5)
    asking.kill()
    assert asking.communicate()[0] == ""
    assert asking.returncode == -signal.SIGKILL


def test_every_failure_has_a_test_here():
    assert {"", "lost", "hang", "no_permission", "not_supported", "unknown"} == set(FAILURES)


def test_an_unloaded_driver_fails_from_the_first_call_on(ask, gpus, nvml_library):
    """Before and after nvmlInit."""
    unload = f"os.unlink({str(gpus.folder / 'driver')!r})"
    assert ["DriverNotLoaded"] * 2 == ask("[tried(n.nvmlDeviceGetCount), tried(n.nvmlDeviceGetPowerUsage, gpu[0])]", unload)

    script = "import pynvml; pynvml.nvmlInit()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=gpus.environment(nvml_library))
    assert "Driver Not Loaded" in done.stderr

    gpus.load_driver()
    assert ask("n.nvmlDeviceGetCount()") == 2


def test_nothing_answers_after_shutdown(ask):
    lines = "n.nvmlShutdown()"

    assert ["Uninitialized"] * 3 == ask("[tried(n.nvmlDeviceGetCount), tried(n.nvmlDeviceGetName, gpu[0]), tried(n.nvmlShutdown)]", lines)


def test_what_root_sets_everybody_can_still_read(gpus, ask):
    """The agent's children have a closed umask; a person's `nvidia-smi` must see the GPU all the same."""
    assert ask("n.nvmlDeviceSetPowerManagementLimit(gpu[0], 300_000)", "os.umask(0o077)") is None

    assert [0o644, 0o644] == [(gpus.folder / name).stat().st_mode & 0o777 for name in ("gpu0", "meter0")]


def test_only_root_sets(gpus, ask):
    """Everybody reads."""
    # Nobody may not pass through the folders above it.
    lines = f"os.chdir({str(gpus.folder)!r})\nos.environ['CHAOSKIT_GPU_STATE'] = '.'\nos.setuid(65534)"
    sets = f"[{SET_LIMIT}, {SET_CLOCK}, tried(n.nvmlDeviceResetGpuLockedClocks, gpu[1]), tried(n.nvmlDeviceSetPersistenceMode, gpu[1], 0)]"

    assert [["NoPermission"] * 4, 70_000] == ask(f"[{sets}, n.nvmlDeviceGetPowerUsage(gpu[1])]", lines)


@pytest.mark.parametrize(
    "call",
    [
        "n.nvmlDeviceSetPowerManagementLimit, gpu[0], 199999",
        "n.nvmlDeviceSetPowerManagementLimit, gpu[0], 700001",
        "n.nvmlDeviceSetGpuLockedClocks, gpu[0], 1500, 1200",
        "n.nvmlDeviceSetGpuLockedClocks, gpu[0], 100, 1200",
        "n.nvmlDeviceSetGpuLockedClocks, gpu[0], 210, 2000",
        "n.nvmlDeviceSetPersistenceMode, gpu[0], 2",
        "n.nvmlDeviceGetTemperature, gpu[0], 1",
        "n.nvmlDeviceGetClockInfo, gpu[0], 4",
    ],
)
def test_what_is_out_of_range_is_refused_and_changes_nothing(ask, gpus, call):
    before = gpus.read(0)

    assert ask(f"tried({call})") == "InvalidArgument"
    assert before == gpus.read(0)


def test_a_struct_of_another_version_is_refused(ask):
    assert ask("tried(n.nvmlDeviceGetMemoryInfo, gpu[0], 0x1000028)") == "ArgumentVersionMismatch"


def test_each_folder_is_a_node_of_its_own(ask, gpus, tmp_path):
    """Other identity, other limits; made again, the same identity, and the limits are lost."""
    other = Gpus(tmp_path / "other")
    other.make(count=1, machine_id="1" * 32)
    ask(SET_LIMIT)

    look = "[n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(gpu[0])]"
    assert [1, other.read(0)["uuid"]] == ask(look, state=other)
    again = Gpus(tmp_path / "again")
    again.make(count=2, machine_id="0" * 32)
    assert (gpus.read(1)["uuid"], 400_000) == (again.read(1)["uuid"], gpus.read(1)["limit"])
    assert (other.read(0)["uuid"], 700_000) != (gpus.read(0)["uuid"], again.read(1)["limit"])


def test_two_that_set_at_once_lose_nothing_of_each_other(gpus, nvml_library):
    """Each writes the whole file; the lock keeps one from writing back what it read before the other wrote."""
    scripts = (
        """
for limit in range(300000, 300200):
    n.nvmlDeviceSetPowerManagementLimit(gpu[0], limit)
    assert n.nvmlDeviceGetPowerManagementLimit(gpu[0]) == limit
""",
        """
for _ in range(100):
    n.nvmlDeviceSetGpuLockedClocks(gpu[0], 210, 1200)
    n.nvmlDeviceResetGpuLockedClocks(gpu[0])
""",
    )
    environment = gpus.environment(nvml_library)
    running = [subprocess.Popen([sys.executable, "-c", f"{ASK}\n{script}"], env=environment) for script in scripts]
    for turn in range(50):
        gpus.edit(0, compute_mode=turn % 2)

    assert [0, 0] == [process.wait() for process in running]
    assert (300_199, 0, 1) == tuple(gpus.read(0)[key] for key in ("limit", "lock_high", "compute_mode"))


def test_editing_what_there_is_not_is_said(gpus):
    with pytest.raises(ValueError, match="a GPU has no colour"):
        gpus.edit(0, colour="red")
    with pytest.raises(ValueError, match="there is no failure 'tired'"):
        gpus.edit(0, failure="tired")


def test_the_library_and_the_state_have_the_same_fields(ask, gpus):
    """What the library writes is what `make` wrote, but for the one field that was set."""
    before = gpus.read(0)
    assert set(before) >= set(BOARD)

    ask("n.nvmlDeviceSetPersistenceMode(gpu[0], 0)")

    assert {**before, "persistence": 0} == gpus.read(0)


def test_it_is_built_once_and_again_when_the_source_changes(tmp_path, monkeypatch):
    library = nvml.build(tmp_path / "lib")
    first = library.stat().st_ino
    assert nvml.build(tmp_path / "lib").stat().st_ino == first

    changed = tmp_path / "nvml.c"
    changed.write_text(nvml.SOURCE.read_text() + "\n/* changed */\n")
    monkeypatch.setattr(nvml, "SOURCE", changed)
    assert nvml.build(tmp_path / "lib").stat().st_ino != first


def test_a_missing_or_failing_compiler_is_a_clear_error(tmp_path, monkeypatch):
    broken = tmp_path / "nvml.c"
    broken.write_text("int main(void) { return no_such_thing; }\n")
    monkeypatch.setattr(nvml, "SOURCE", broken)
    with pytest.raises(RefusedError, match="no_such_thing"):
        nvml.build(tmp_path / "lib")
    assert not (tmp_path / "lib" / nvml.LIBRARY).exists()

    monkeypatch.setattr(requirements, "SYSTEM_PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="program 'gcc' is not installed"):
        nvml.build(tmp_path / "lib")


def test_it_compiles_without_a_warning(tmp_path):
    argv = ["gcc", *nvml.FLAGS, "-Werror", "-Wshadow", "-Wstrict-prototypes", "-o", str(tmp_path / "out.so"), str(nvml.SOURCE)]

    assert "" == subprocess.run(argv, capture_output=True, text=True, check=False).stderr


@pytest.fixture
def smi(gpus, nvml_library):
    """Return a function that runs the node's nvidia-smi: (exit status, output, errors)."""
    script = Path(nvml.__file__).with_name("nvidia_smi.py")

    def smi(*argv):
        done = subprocess.run(
            [sys.executable, script, *argv],
            capture_output=True,
            text=True,
            check=False,
            env={**gpus.environment(nvml_library), "COLUMNS": "80"},
        )
        return done.returncode, done.stdout, done.stderr

    return smi


def test_nvidia_smi_lists_and_queries(smi, gpus, worker):
    names = [f"GPU {index}: NVIDIA H100 80GB HBM3 (simulated) (UUID: {gpus.read(index)['uuid']})" for index in (0, 1)]
    assert (0, "\n".join([*names, ""]), "") == smi("-L")

    asked = "--query-gpu=index,power.draw,clocks.sm,clocks_event_reasons.gpu_idle"
    head = "index, power.draw [W], clocks.sm [MHz], clocks_event_reasons.gpu_idle"
    assert smi(asked, "--format=csv")[1] == f"{head}\n0, 620.00 W, 1980 MHz, Not Active\n1, 70.00 W, 345 MHz, Active\n"
    assert smi(asked, "--format=csv,noheader,nounits", "-i", "1")[1] == "1, 70.00, 345, Active\n"
    assert smi("--query-gpu=uuid", "--format=csv,noheader", "-i", gpus.read(1)["uuid"])[1] == f"{gpus.read(1)['uuid']}\n"
    code, _, said = smi("--query-gpu=colour")
    assert (1, True) == (code, said.startswith('Field "colour" is not a valid field'))


def test_nvidia_smi_sets(smi, gpus):
    assert smi("-i", "0", "-pl", "315")[:2] == (0, "Power limit for GPU 00000000:17:00.0 was set to 315.00 W from 700.00 W.\n")
    assert smi("-i", "0000:17:00.0", "-lgc", "210,1200")[0] == 0
    assert (315_000, 1200, 700_000) == (gpus.read(0)["limit"], gpus.read(0)["lock_high"], gpus.read(1)["limit"])
    assert smi("-rgc")[0] == 0
    assert gpus.read(0)["lock_high"] == 0
    assert (2, "", "nvidia-smi: Invalid Argument\n") == smi("-pl", "100")


def test_nvidia_smi_shows_all_gpus_also_those_that_fail(smi, gpus, worker):
    """A cap shows as the reason that holds the clock down; a GPU that does not answer does not take the table away."""
    gpus.edit(0, limit=315_000)
    gpus.edit(1, failure="unknown")
    code, said, _ = smi()
    first, second = (next(line for line in said.splitlines() if line.startswith(f"  {index}  ")) for index in (0, 1))

    assert code == 0
    assert all(word in first for word in ("314.44 / 315.00 W", "1320 MHz", "97%", "sw_power_cap", "34816 / 81920 MiB"))
    assert "ERR!" in second
    assert f"GPU 0  pid {worker.pid}" in said


def test_nvidia_smi_ends_with_the_error_of_the_driver(smi, gpus):
    gpus.unload_driver()

    assert (9, "", "nvidia-smi: Driver Not Loaded\n") == smi("-L")
