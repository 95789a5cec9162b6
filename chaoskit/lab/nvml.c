/*
 * A simulated NVML: the libnvidia-ml.so.1 of a lab node, loaded by NVIDIA's own pynvml as any driver's would be.
 *
 * The GPUs are text files in one folder per node, /run/chaoskit-gpu or $CHAOSKIT_GPU_STATE:
 *
 *     driver          versions, `key value` a line; without this file the driver is not loaded
 *     gpu0, gpu1 ...  one GPU each: `key value` a line, see FIELDS below; power in mW, clocks in MHz, memory in bytes
 *     meter0 ...      energy and capped time up to a moment, and the draw from then on; see struct meter
 *     clients/PID     "INDEX [KIND [SHARE]]": this process computes on that GPU; KIND `mps` when it does so through MPS,
 *                     SHARE is for the driver, see chaoskit.lab.gpu_driver
 *     lock            held around every change, by us and by chaoskit.lab.gpus
 *
 * The physics, simple and the same everywhere:
 *
 *     A GPU works while one of its clients lives and is not stopped; otherwise it idles at `clock_idle` and `draw_idle`.
 *     At clock f a working GPU draws  draw_idle + (draw_busy - draw_idle) * (f / clock_max)^2.
 *     It runs at the highest multiple of STEP_MHZ, up to clock_max, that keeps the draw within `limit` and the clock
 *     within the locked range. What it gets done in a second is proportional to f.
 *
 * With the values of chaoskit.lab.gpus (70 W, 620 W, 1980 MHz) a cap of 315 W means 1320 MHz: steps of 1.5 times the length.
 *
 * Failures are asked for by a GPU's `failure` (see struct failure); `failing` narrows one down to the functions whose
 * names begin so. Struct layouts and numbers are those of NVIDIA's public NVML interface, versions as pynvml asks for them.
 */

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16
#define STEP_MHZ 15
#define MEGA 1000000ULL
#define UTILISATION 97 /* percent, of a GPU that works */
#define TEMPERATURE_IDLE 31
#define WATTS_PER_DEGREE 20
#define VERSIONED(type, version) (unsigned)(sizeof(type) | (version) << 24)

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    OPERATING_SYSTEM = 17,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};
enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO };
enum { REASON_IDLE = 0x1, REASON_LOCKED = 0x2, REASON_POWER_CAP = 0x4, REASONS = 0x1ff };

/* What a function is about; failures strike by it. IDENTITY: which GPU it is, and the way to a handle. */
enum { IDENTITY = 1, READING = 2, POWER = 4, SETTING = 8 };

typedef int result;

static const struct failure {
    const char *name;
    unsigned strikes;
    result code; /* -1: the call never returns */
} FAILURES[] = {
    {"lost", IDENTITY | READING | POWER | SETTING, GPU_IS_LOST}, /* fell off the bus */
    {"no_permission", SETTING, NO_PERMISSION},                   /* root too, as in a container */
    {"not_supported", POWER | SETTING, NOT_SUPPORTED},           /* no power management on this board */
    {"hang", READING | POWER | SETTING, -1},                     /* the driver waits for a GPU that does not answer */
    {"unknown", READING | POWER | SETTING, UNKNOWN},
};

struct gpu {
    unsigned index, bus;
    unsigned limit, limit_default, limit_min, limit_max, draw_idle, draw_busy;
    unsigned clock_idle, clock_min, clock_max, clock_mem, lock_low, lock_high; /* lock_high 0: not locked */
    unsigned persistence, compute_mode, mig;
    unsigned long long memory, memory_client;
    char name[64], uuid[64], serial[32], part[32], vbios[32], failure[32], failing[64];
    /* Not in the file: who is there now. */
    unsigned clients, working;
};

static const struct field {
    const char *key;
    enum { NUMBER, SIZE, TEXT } kind;
    size_t at, room;
} FIELDS[] = {
#define FIELD(kind, name) {#name, kind, offsetof(struct gpu, name), sizeof(((struct gpu *)0)->name)}
    FIELD(TEXT, name),         FIELD(TEXT, uuid),         FIELD(TEXT, serial),        FIELD(TEXT, part),
    FIELD(TEXT, vbios),
    FIELD(NUMBER, bus),        FIELD(NUMBER, limit),      FIELD(NUMBER, limit_default), FIELD(NUMBER, limit_min),
    FIELD(NUMBER, limit_max),  FIELD(NUMBER, draw_idle),  FIELD(NUMBER, draw_busy),   FIELD(NUMBER, clock_idle),
    FIELD(NUMBER, clock_min),  FIELD(NUMBER, clock_max),  FIELD(NUMBER, clock_mem),   FIELD(NUMBER, lock_low),
    FIELD(NUMBER, lock_high),  FIELD(SIZE, memory),       FIELD(SIZE, memory_client), FIELD(NUMBER, persistence),
    FIELD(NUMBER, compute_mode), FIELD(NUMBER, mig),      FIELD(TEXT, failure),       FIELD(TEXT, failing),
#undef FIELD
};
#define EACH_FIELD(field) const struct field *field = FIELDS; field < FIELDS + sizeof FIELDS / sizeof *FIELDS; field++

/* Energy in microjoules and time under a power cap in ns, both up to `since` (boot-time clock, ns); then the state after it. */
struct meter {
    unsigned long long since, energy, capped;
    unsigned draw, capping;
};

struct client {
    unsigned pid, mps;
    int working; /* lives and is not stopped */
};

static int users; /* nvmlInit calls that no nvmlShutdown has answered yet */
static char handles[MAX_GPUS]; /* the address of handles[i] is the handle of GPU i, which so is never NULL */

/* --- the state folder ----------------------------------------------------------------------------------------------- */

static void path_of(char *path, const char *name, int index)
{
    const char *folder = getenv("CHAOSKIT_GPU_STATE");

    folder = folder && *folder ? folder : "/run/chaoskit-gpu";
    if (index < 0)
        snprintf(path, PATH_MAX, "%s/%s", folder, name);
    else
        snprintf(path, PATH_MAX, "%s/%s%d", folder, name, index);
}

static FILE *open_state(const char *name, int index)
{
    char path[PATH_MAX];

    path_of(path, name, index);
    return fopen(path, "re");
}

/* Replace a file in one step, as readers take no lock; `fill` writes it. */
static result replace(const char *name, int index, void (*fill)(FILE *, const void *), const void *what)
{
    char path[PATH_MAX], fresh[PATH_MAX + 8];
    FILE *file;
    int bad;

    path_of(path, name, index);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    file = fopen(fresh, "we");
    if (!file)
        return OPERATING_SYSTEM;
    fill(file, what);
    bad = ferror(file) || fchmod(fileno(file), 0644); /* whoever changes it, everybody may look: as with a real driver */
    return fclose(file) || bad || rename(fresh, path) ? OPERATING_SYSTEM : SUCCESS;
}

static int lock_state(void)
{
    char path[PATH_MAX];
    int fd;

    path_of(path, "lock", -1);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        flock(fd, LOCK_EX);
    return fd;
}

static void unlock_state(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Copy the value of `key` out of a file of `key value` lines; 0 when there is none. */
static int value_of(FILE *file, const char *key, char *value, size_t room)
{
    char line[256];
    size_t length = strlen(key);

    rewind(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, room, "%s", line + length + 1);
            return 1;
        }
    return 0;
}

static int read_gpu(unsigned index, struct gpu *gpu)
{
    FILE *file = open_state("gpu", (int)index);
    char value[256];

    if (!file)
        return 0;
    memset(gpu, 0, sizeof *gpu);
    for (EACH_FIELD(field)) {
        char *slot = (char *)gpu + field->at;

        if (!value_of(file, field->key, value, sizeof value))
            continue;
        if (field->kind == TEXT)
            snprintf(slot, field->room, "%s", value);
        else if (field->kind == SIZE)
            *(unsigned long long *)slot = strtoull(value, NULL, 10);
        else
            *(unsigned *)slot = (unsigned)strtoul(value, NULL, 10);
    }
    fclose(file);
    gpu->index = index;
    return 1;
}

static void write_gpu(FILE *file, const void *what)
{
    for (EACH_FIELD(field)) {
        const char *slot = (const char *)what + field->at;

        if (field->kind == TEXT)
            fprintf(file, "%s %s\n", field->key, slot);
        else if (field->kind == SIZE)
            fprintf(file, "%s %llu\n", field->key, *(const unsigned long long *)slot);
        else
            fprintf(file, "%s %u\n", field->key, *(const unsigned *)slot);
    }
}

/* The state letter of a process as ps shows it; 0 when it is gone. */
static char process_state(unsigned pid)
{
    char path[64], text[512], *after;
    FILE *file;
    size_t length;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    after = strrchr(text, ')'); /* the name before it may hold anything */
    return after && after[1] == ' ' ? after[2] : 0;
}

/* List the living clients of a GPU, `room` at most, and return how many there are. */
static unsigned list_clients(unsigned index, struct client *list, unsigned room)
{
    char path[PATH_MAX], name[32], kind[16];
    unsigned count = 0, on, pid;
    struct dirent *entry;
    DIR *folder;

    path_of(path, "clients", -1);
    folder = opendir(path);
    while (folder && (entry = readdir(folder))) {
        FILE *file;
        int words;
        char state;

        pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        snprintf(name, sizeof name, "clients/%u", pid);
        if (strcmp(name + strlen("clients/"), entry->d_name) || !(file = open_state(name, -1)))
            continue;
        kind[0] = 0;
        words = fscanf(file, "%u %15s", &on, kind);
        fclose(file);
        state = process_state(pid);
        if (words < 1 || on != index || !state || strchr("ZXx", state))
            continue;
        if (count < room)
            list[count] = (struct client){pid, !strcmp(kind, "mps"), !strchr("Tt", state)};
        count++;
    }
    if (folder)
        closedir(folder);
    return count;
}

static void look_at_clients(struct gpu *gpu)
{
    struct client list[256];
    unsigned count = list_clients(gpu->index, list, 256);

    gpu->clients = count;
    for (unsigned i = 0; i < count && i < 256; i++)
        gpu->working += list[i].working;
}

/* --- the physics ---------------------------------------------------------------------------------------------------- */

static unsigned draw_at(const struct gpu *gpu, unsigned clock)
{
    unsigned long long rise = gpu->draw_busy - gpu->draw_idle, full = gpu->clock_max;

    return gpu->draw_idle + (full ? (unsigned)(rise * clock * clock / (full * full)) : 0);
}

/* The clock that the power limit alone allows. */
static unsigned clock_by_power(const struct gpu *gpu)
{
    unsigned clock = gpu->clock_max;

    while (draw_at(gpu, clock) > gpu->limit && clock >= gpu->clock_min + STEP_MHZ)
        clock -= STEP_MHZ;
    return clock;
}

static unsigned clock_by_lock(const struct gpu *gpu)
{
    return gpu->lock_high ? gpu->lock_high : gpu->clock_max;
}

/* The clock of a GPU that works. */
static unsigned clock_working(const struct gpu *gpu)
{
    unsigned power = clock_by_power(gpu), lock = clock_by_lock(gpu);

    return power < lock ? power : lock;
}

static unsigned clock_now(const struct gpu *gpu)
{
    if (gpu->working)
        return clock_working(gpu);
    return gpu->lock_low > gpu->clock_idle ? gpu->lock_low : gpu->clock_idle;
}

static unsigned draw_now(const struct gpu *gpu)
{
    return gpu->working ? draw_at(gpu, clock_working(gpu)) : gpu->draw_idle;
}

static unsigned long long reasons_now(const struct gpu *gpu)
{
    if (!gpu->working)
        return REASON_IDLE;
    if (clock_by_power(gpu) < clock_by_lock(gpu))
        return REASON_POWER_CAP;
    return clock_by_lock(gpu) < gpu->clock_max ? REASON_LOCKED : 0;
}

/* --- the meter ------------------------------------------------------------------------------------------------------ */

static unsigned long long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (unsigned long long)now.tv_sec * 1000 * MEGA + (unsigned long long)now.tv_nsec;
}

/* Read the meter as of now. */
static struct meter read_meter(unsigned index)
{
    struct meter meter = {0};
    unsigned long long now = now_ns(), passed;
    FILE *file = open_state("meter", (int)index);

    if (file) {
        if (fscanf(file, "%llu %llu %llu %u %u", &meter.since, &meter.energy, &meter.capped, &meter.draw, &meter.capping) != 5)
            meter = (struct meter){.since = now};
        fclose(file);
    }
    passed = now - (meter.since ? meter.since : now);
    meter.energy += passed / 1000 * meter.draw / 1000; /* us * mW = nJ */
    meter.capped += meter.capping ? passed : 0;
    meter.since = now;
    return meter;
}

static void write_meter(FILE *file, const void *what)
{
    const struct meter *meter = what;

    fprintf(file, "%llu %llu %llu %u %u\n", meter->since, meter->energy, meter->capped, meter->draw, meter->capping);
}

/* Close the account up to now, and open the next with the present draw; done when anything about the GPU has changed. */
static result turn_meter(const struct gpu *gpu)
{
    struct meter meter = read_meter(gpu->index);

    meter.draw = draw_now(gpu);
    meter.capping = reasons_now(gpu) == REASON_POWER_CAP;
    return replace("meter", (int)gpu->index, write_meter, &meter);
}

/* --- for the lab's GPU driver, which no failure touches -------------------------------------------------------------- */

/* Return the clock at which a GPU works, as a share of its highest in parts of a million; -1 when there is no such GPU. */
API int chaoskit_gpu_pace(unsigned index)
{
    struct gpu gpu;

    if (!read_gpu(index, &gpu) || !gpu.clock_max)
        return -1;
    return (int)(clock_working(&gpu) * MEGA / gpu.clock_max);
}

/* Note in a GPU's meter that a client came or went, or that its file was edited. */
API void chaoskit_gpu_changed(unsigned index)
{
    struct gpu gpu;
    int lock = lock_state();

    if (read_gpu(index, &gpu)) {
        look_at_clients(&gpu);
        turn_meter(&gpu);
    }
    unlock_state(lock);
}

/* --- the way into a call -------------------------------------------------------------------------------------------- */

static result check_driver(void)
{
    FILE *file;

    if (!users)
        return UNINITIALIZED;
    file = open_state("driver", -1);
    if (!file)
        return DRIVER_NOT_LOADED;
    fclose(file);
    return SUCCESS;
}

/* Do what the GPU's `failure` asks of a call: return its code, or never. */
static result fail(const struct gpu *gpu, const char *function, unsigned about)
{
    for (const struct failure *failure = FAILURES; failure < FAILURES + sizeof FAILURES / sizeof *FAILURES; failure++) {
        int named = gpu->failing[0] && !strncmp(function, gpu->failing, strlen(gpu->failing));
        int strikes = gpu->failing[0] ? named : (failure->strikes & about) != 0;

        if (strcmp(gpu->failure, failure->name) || !strikes)
            continue;
        while (failure->code < 0)
            pause();
        return failure->code;
    }
    return SUCCESS;
}

static result open_index(unsigned index, struct gpu *gpu, const char *function, unsigned about)
{
    result code = check_driver();

    if (code)
        return code;
    if (index >= MAX_GPUS || !read_gpu(index, gpu))
        return INVALID_ARGUMENT;
    look_at_clients(gpu);
    return fail(gpu, function, about);
}

static result open_handle(const void *handle, struct gpu *gpu, const char *function, unsigned about)
{
    uintptr_t index = (uintptr_t)handle - (uintptr_t)handles;

    if (!users)
        return UNINITIALIZED;
    return index < MAX_GPUS ? open_index((unsigned)index, gpu, function, about) : INVALID_ARGUMENT;
}

/* Begin a call about a handle: `gpu` holds its GPU, or the call has returned. */
#define CALL(about)                                                    \
    struct gpu gpu;                                                    \
    result code = open_handle(handle, &gpu, __func__, about);          \
    if (code)                                                          \
        return code

/* Begin a call that changes the GPU: for root only, with the state locked and read again under the lock. */
#define CHANGE()                                                       \
    CALL(SETTING);                                                     \
    if (geteuid())                                                     \
        return NO_PERMISSION;                                          \
    int lock = lock_state();                                           \
    read_gpu(gpu.index, &gpu);                                         \
    look_at_clients(&gpu)

/* End it: keep the new state when `valid`, and let go of the lock. */
static result keep(struct gpu *gpu, int lock, int valid)
{
    result code = valid ? replace("gpu", (int)gpu->index, write_gpu, gpu) : INVALID_ARGUMENT;

    if (!code)
        code = turn_meter(gpu);
    unlock_state(lock);
    return code;
}

/* Answer with one number. */
#define ANSWER(name, type, about, value)                               \
    API result name(const void *handle, type *out)                     \
    {                                                                  \
        CALL(about);                                                   \
        if (!out)                                                      \
            return INVALID_ARGUMENT;                                   \
        *out = (value);                                                \
        return SUCCESS;                                                \
    }

static result copy(const char *text, char *out, unsigned room)
{
    if (!out)
        return INVALID_ARGUMENT;
    if (strlen(text) >= room)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

#define TEXT_ANSWER(name, value)                                       \
    API result name(const void *handle, char *out, unsigned room)      \
    {                                                                  \
        CALL(IDENTITY);                                                \
        return copy(value, out, room);                                 \
    }

/* --- the library and the driver ------------------------------------------------------------------------------------- */

API result nvmlInitWithFlags(unsigned flags)
{
    result code;

    (void)flags;
    users++;
    code = check_driver();
    if (code)
        users--;
    return code;
}

API result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API result nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    users--;
    return SUCCESS;
}

API const char *nvmlErrorString(result code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case OPERATING_SYSTEM: return "Operating System Error";
    case ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

static result driver_text(const char *key, char *out, unsigned room)
{
    char value[64] = "";
    result code = check_driver();
    FILE *file = code ? NULL : open_state("driver", -1);

    if (file) {
        value_of(file, key, value, sizeof value);
        fclose(file);
    }
    return code ? code : copy(value, out, room);
}

API result nvmlSystemGetDriverVersion(char *out, unsigned room) { return driver_text("version", out, room); }

API result nvmlSystemGetNVMLVersion(char *out, unsigned room) { return driver_text("nvml", out, room); }

API result nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    char text[16];
    result code = driver_text("cuda", text, sizeof text);

    if (!code)
        *out = atoi(text);
    return code;
}

API result nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

/* --- which GPUs there are ------------------------------------------------------------------------------------------- */

API result nvmlDeviceGetCount_v2(unsigned *out)
{
    struct gpu gpu;
    result code = check_driver();

    if (!code)
        for (*out = 0; *out < MAX_GPUS && read_gpu(*out, &gpu);)
            ++*out;
    return code;
}

API result nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    struct gpu gpu;
    result code = open_index(index, &gpu, __func__, IDENTITY);

    if (!code)
        *out = handles + index;
    return code;
}

static void pci_name(const struct gpu *gpu, int digits, char *out)
{
    snprintf(out, 32, "%0*X:%02X:00.0", digits, 0, gpu->bus & 0xff);
}

/* Find a GPU by its UUID or by its PCI address, in either length and either case. */
static result find(const char *text, int by_uuid, const char *function, void **out)
{
    struct gpu gpu;
    char longer[32], shorter[32];
    result code = check_driver();

    for (unsigned index = 0; !code && index < MAX_GPUS && read_gpu(index, &gpu); index++) {
        pci_name(&gpu, 8, longer);
        pci_name(&gpu, 4, shorter);
        if (by_uuid ? strcmp(text, gpu.uuid) : strcasecmp(text, longer) && strcasecmp(text, shorter))
            continue;
        *out = handles + index;
        return fail(&gpu, function, IDENTITY);
    }
    return code ? code : NOT_FOUND;
}

API result nvmlDeviceGetHandleByUUID(const char *uuid, void **out) { return find(uuid, 1, __func__, out); }

API result nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) { return find(bus, 0, __func__, out); }

ANSWER(nvmlDeviceGetIndex, unsigned, IDENTITY, gpu.index)
ANSWER(nvmlDeviceGetMinorNumber, unsigned, IDENTITY, gpu.index)
ANSWER(nvmlDeviceGetBoardId, unsigned, IDENTITY, gpu.bus << 8)
TEXT_ANSWER(nvmlDeviceGetName, gpu.name)
TEXT_ANSWER(nvmlDeviceGetUUID, gpu.uuid)
TEXT_ANSWER(nvmlDeviceGetSerial, gpu.serial)
TEXT_ANSWER(nvmlDeviceGetBoardPartNumber, gpu.part)
TEXT_ANSWER(nvmlDeviceGetVbiosVersion, gpu.vbios)

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

API result nvmlDeviceGetPciInfo_v3(const void *handle, struct pci_info *out)
{
    CALL(IDENTITY);
    memset(out, 0, sizeof *out);
    pci_name(&gpu, 4, out->bus_id_legacy);
    pci_name(&gpu, 8, out->bus_id);
    out->bus = gpu.bus;
    out->device_id = 0x233010de;
    return SUCCESS;
}

/* --- readings ------------------------------------------------------------------------------------------------------- */

struct memory_v1 {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static unsigned long long memory_used(const struct gpu *gpu)
{
    unsigned long long wanted = gpu->clients * gpu->memory_client;

    return wanted < gpu->memory ? wanted : gpu->memory;
}

API result nvmlDeviceGetMemoryInfo(const void *handle, struct memory_v1 *out)
{
    CALL(READING);
    *out = (struct memory_v1){gpu.memory, gpu.memory - memory_used(&gpu), memory_used(&gpu)};
    return SUCCESS;
}

API result nvmlDeviceGetMemoryInfo_v2(const void *handle, struct memory_v2 *out)
{
    CALL(READING);
    if (out->version != VERSIONED(struct memory_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    *out = (struct memory_v2){out->version, gpu.memory, 0, gpu.memory - memory_used(&gpu), memory_used(&gpu)};
    return SUCCESS;
}

struct utilisation {
    unsigned gpu, memory;
};

API result nvmlDeviceGetUtilizationRates(const void *handle, struct utilisation *out)
{
    CALL(READING);
    if (gpu.mig)
        return NOT_SUPPORTED; /* as the real one: a partitioned GPU has no utilisation of its own */
    *out = (struct utilisation){gpu.working ? UTILISATION : 0, gpu.working ? UTILISATION / 2 : 0};
    return SUCCESS;
}

static unsigned temperature(const struct gpu *gpu)
{
    return TEMPERATURE_IDLE + (draw_now(gpu) - gpu->draw_idle) / 1000 / WATTS_PER_DEGREE;
}

API result nvmlDeviceGetTemperature(const void *handle, unsigned sensor, unsigned *out)
{
    CALL(READING);
    if (sensor)
        return INVALID_ARGUMENT;
    *out = temperature(&gpu);
    return SUCCESS;
}

struct temperature_v1 {
    unsigned version, sensor;
    int temperature;
};

API result nvmlDeviceGetTemperatureV(const void *handle, struct temperature_v1 *out)
{
    CALL(READING);
    if (out->version != VERSIONED(struct temperature_v1, 1))
        return ARGUMENT_VERSION_MISMATCH;
    if (out->sensor)
        return INVALID_ARGUMENT;
    out->temperature = (int)temperature(&gpu);
    return SUCCESS;
}

static result clock_of(const struct gpu *gpu, unsigned type, unsigned graphics, unsigned *out)
{
    if (type > CLOCK_VIDEO)
        return INVALID_ARGUMENT;
    *out = type == CLOCK_MEM ? gpu->clock_mem : graphics;
    return SUCCESS;
}

API result nvmlDeviceGetClockInfo(const void *handle, unsigned type, unsigned *out)
{
    CALL(READING);
    return clock_of(&gpu, type, clock_now(&gpu), out);
}

API result nvmlDeviceGetMaxClockInfo(const void *handle, unsigned type, unsigned *out)
{
    CALL(READING);
    return clock_of(&gpu, type, gpu.clock_max, out);
}

API result nvmlDeviceGetClock(const void *handle, unsigned type, unsigned which, unsigned *out)
{
    CALL(READING);
    if (which > 3)
        return INVALID_ARGUMENT;
    return clock_of(&gpu, type, which ? gpu.clock_max : clock_now(&gpu), out); /* 0 is the present one */
}

/* Hand out a list as NVML does: too little room says how much is needed. */
static result hand_out(unsigned wanted, unsigned *count, const void *out)
{
    unsigned room = *count;

    *count = wanted;
    return wanted && (room < wanted || !out) ? INSUFFICIENT_SIZE : SUCCESS;
}

API result nvmlDeviceGetSupportedMemoryClocks(const void *handle, unsigned *count, unsigned *out)
{
    CALL(READING);
    code = hand_out(1, count, out);
    if (!code)
        *out = gpu.clock_mem;
    return code;
}

API result nvmlDeviceGetSupportedGraphicsClocks(const void *handle, unsigned memory, unsigned *count, unsigned *out)
{
    CALL(READING);
    if (memory != gpu.clock_mem)
        return NOT_FOUND;
    code = hand_out((gpu.clock_max - gpu.clock_min) / STEP_MHZ + 1, count, out);
    for (unsigned i = 0; !code && i < *count; i++)
        out[i] = gpu.clock_max - i * STEP_MHZ;
    return code;
}

ANSWER(nvmlDeviceGetPerformanceState, unsigned, READING, gpu.working ? 0 : 8)
ANSWER(nvmlDeviceGetPersistenceMode, unsigned, READING, gpu.persistence)
ANSWER(nvmlDeviceGetComputeMode, unsigned, READING, gpu.compute_mode)
ANSWER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, POWER, reasons_now(&gpu))
ANSWER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, POWER, reasons_now(&gpu))
ANSWER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, POWER, REASONS)
ANSWER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, POWER, REASONS)

API result nvmlDeviceGetMigMode(const void *handle, unsigned *current, unsigned *pending)
{
    CALL(READING);
    *current = *pending = gpu.mig;
    return SUCCESS;
}

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

/* List the clients of one kind; those of MPS are the server's, and stand in a list of their own. */
static result list_processes(const struct gpu *gpu, unsigned mps, unsigned *count, struct process *out)
{
    struct client list[256];
    unsigned all = list_clients(gpu->index, list, 256), found = 0;
    result code;

    for (unsigned i = 0; i < all && i < 256; i++)
        if (list[i].mps == mps)
            list[found++] = list[i];
    code = hand_out(found, count, out);
    for (unsigned i = 0; !code && i < found; i++)
        out[i] = (struct process){list[i].pid, gpu->memory_client, UINT_MAX, UINT_MAX};
    return code;
}

API result nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count, struct process *out)
{
    CALL(READING);
    return list_processes(&gpu, 0, count, out);
}

API result nvmlDeviceGetMPSComputeRunningProcesses_v3(const void *handle, unsigned *count, struct process *out)
{
    CALL(READING);
    return list_processes(&gpu, 1, count, out);
}

API result nvmlDeviceGetGraphicsRunningProcesses_v3(const void *handle, unsigned *count, struct process *out)
{
    CALL(READING);
    return hand_out(0, count, out);
}

/* --- power ---------------------------------------------------------------------------------------------------------- */

ANSWER(nvmlDeviceGetPowerUsage, unsigned, POWER, draw_now(&gpu))
ANSWER(nvmlDeviceGetPowerManagementMode, unsigned, POWER, 1)
ANSWER(nvmlDeviceGetPowerManagementLimit, unsigned, POWER, gpu.limit)
ANSWER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, POWER, gpu.limit_default)
ANSWER(nvmlDeviceGetEnforcedPowerLimit, unsigned, POWER, gpu.limit)
ANSWER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, POWER, read_meter(gpu.index).energy / 1000)

API result nvmlDeviceGetPowerManagementLimitConstraints(const void *handle, unsigned *low, unsigned *high)
{
    CALL(POWER);
    *low = gpu.limit_min;
    *high = gpu.limit_max;
    return SUCCESS;
}

struct violation {
    unsigned long long reference, violation; /* us since boot, ns in all */
};

API result nvmlDeviceGetViolationStatus(const void *handle, unsigned policy, struct violation *out)
{
    CALL(POWER);
    if (policy) /* only power is metered */
        return NOT_SUPPORTED;
    *out = (struct violation){now_ns() / 1000, read_meter(gpu.index).capped};
    return SUCCESS;
}

/* --- settings, for root --------------------------------------------------------------------------------------------- */

API result nvmlDeviceSetPowerManagementLimit(const void *handle, unsigned limit)
{
    CHANGE();
    gpu.limit = limit;
    return keep(&gpu, lock, gpu.limit_min <= limit && limit <= gpu.limit_max);
}

API result nvmlDeviceSetGpuLockedClocks(const void *handle, unsigned low, unsigned high)
{
    CHANGE();
    gpu.lock_low = low / STEP_MHZ * STEP_MHZ;
    gpu.lock_high = high / STEP_MHZ * STEP_MHZ;
    return keep(&gpu, lock, gpu.clock_min <= low && low <= high && high <= gpu.clock_max);
}

API result nvmlDeviceResetGpuLockedClocks(const void *handle)
{
    CHANGE();
    gpu.lock_low = gpu.lock_high = 0;
    return keep(&gpu, lock, 1);
}

API result nvmlDeviceSetPersistenceMode(const void *handle, unsigned mode)
{
    CHANGE();
    gpu.persistence = mode;
    return keep(&gpu, lock, mode <= 1);
}
