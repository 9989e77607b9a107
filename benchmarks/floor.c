/* floor.c: what the machine itself costs, in plain C with nothing of the product in it.
 *
 * Each mode does by the shortest way what one of the benchmark's rows asks for: a bash on a pty whose prompt is
 * the fence, one write per command, blocking reads until the fence is there.  No checks, no timeouts, no
 * matching, no thread: a session engine cannot be faster than this on the same machine, only close to it.
 *
 *   floor command N TEXT [REST]      one session; N times TEXT; every latency.  REST: microseconds of busy waiting
 *                                    before each, so that the shell is asleep when its line comes
 *   floor carried N TEXT ARGV...     the same through a program that carries the terminal of a bash elsewhere, such as
 *                                    `docker exec -it`; its own terminal is there, ours is raw
 *   floor start N user|rc|bare       spawn to first prompt: as a person has it (readline and startup files), with
 *                                    startup files but without readline, and with neither
 *   floor output FILE ROUNDS         one session; `cat FILE`, read and counted
 *   floor interrupt N                SIGINT to the foreground group of `sleep 100` until the prompt
 *   floor fleet SESSIONS COMMANDS    that many sessions at once on one epoll; commands a second
 *   floor facts                      the price of the system calls that a session engine may add
 *
 * Prints one JSON object.  Times are microseconds.  CPU is split into this process ("self") and the shells below
 * it ("children").  The terminal is in the mode that the product uses: canonical, no echo, no output processing.
 *
 * Build: cc -O2 -std=c11 -D_GNU_SOURCE floor.c -o floor -lutil -lpthread
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { READ_SIZE = 65536, FENCE_MAX = 24 };

/* The prompt: \036 F <exit code> ; \037.  The data files hold neither control byte. */
static const char fence_prompt[] = "PS1=\036F$?;\037";
static const char fence_head[] = "\036F";

typedef struct {
    pid_t pid;
    int master;
    char tail[FENCE_MAX]; /* the last bytes of the stream, enough to hold one fence */
    size_t tail_size;
    unsigned done; /* commands finished, for the fleet */
    uint64_t begun; /* when the last one was sent */
} shell;

static void die(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void *need(void *memory)
{
    if (!memory) {
        die("malloc");
    }
    return memory;
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double self_cpu_us(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

/* CPU of a shell (nanosecond counter of its only thread) and of the children it has waited for (clock ticks). */
static double shell_cpu_us(pid_t pid)
{
    char path[64], text[1024];
    unsigned long long run = 0, cutime = 0, cstime = 0;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%llu", &run) != 1) {
            run = 0;
        }
        fclose(file);
    }
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (file) {
        size_t size = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[size] = 0;
        char *after = strrchr(text, ')');
        if (after) {
            sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %llu %llu", &cutime, &cstime);
        }
    }
    return (double)run / 1e3 + (double)(cutime + cstime) * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

/* The environment with our prompt, empty PS2 and PROMPT_COMMAND out of the way.  Never freed: lives for the run. */
static char **shell_environment(void)
{
    size_t count = 0;
    while (environ[count]) {
        count++;
    }
    char **out = need(calloc(count + 4, sizeof *out));
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], "PS1=", 4) && strncmp(environ[i], "PS2=", 4) && strncmp(environ[i], "TERM=", 5) &&
            strncmp(environ[i], "PROMPT_COMMAND=", 15)) {
            out[used++] = environ[i];
        }
    }
    out[used++] = (char *)fence_prompt;
    out[used++] = "PS2=";
    out[used] = "TERM=dumb";
    return out;
}

static void spawn_shell(shell *sh, char *const argv[], char **env)
{
    static const int reset[] = { SIGINT, SIGQUIT, SIGPIPE, SIGHUP, SIGTERM, SIGCHLD, SIGTSTP, SIGTTIN, SIGTTOU };
    struct winsize size = { .ws_row = 24, .ws_col = 80 };
    struct termios mode;
    int slave;
    char name[64];
    if (openpty(&sh->master, &slave, name, NULL, &size) || tcgetattr(slave, &mode)) {
        die("openpty");
    }
    mode.c_oflag &= (tcflag_t)~OPOST;
    mode.c_lflag &= (tcflag_t)~ECHO;
    if (tcsetattr(slave, TCSANOW, &mode)) {
        die("tcsetattr");
    }
    fcntl(sh->master, F_SETFD, FD_CLOEXEC);
    fcntl(slave, F_SETFD, FD_CLOEXEC);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (size_t i = 0; i < sizeof reset / sizeof *reset; i++) {
        sigaddset(&defaults, reset[i]);
    }
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    /* Opened by the session leader, so it becomes the controlling terminal. */
    posix_spawn_file_actions_addopen(&files, 0, name, O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&files, 0, 1);
    posix_spawn_file_actions_adddup2(&files, 0, 2);
    int failed = posix_spawnp(&sh->pid, argv[0], &files, &attr, argv, env);
    if (failed) {
        errno = failed;
        die("posix_spawn");
    }
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    close(slave);
    sh->tail_size = 0;
    sh->done = 0;
}

static void end_shell(shell *sh)
{
    kill(sh->pid, SIGKILL);
    close(sh->master);
    waitpid(sh->pid, NULL, 0);
}

/* Keeps the last bytes; true when the stream now ends with a fence, whose exit code goes to *code. */
static bool saw_fence(shell *sh, const char *bytes, size_t size, int *code)
{
    if (size >= FENCE_MAX) {
        memcpy(sh->tail, bytes + size - FENCE_MAX, FENCE_MAX);
        sh->tail_size = FENCE_MAX;
    } else {
        size_t keep = sh->tail_size + size > FENCE_MAX ? FENCE_MAX - size : sh->tail_size;
        memmove(sh->tail, sh->tail + sh->tail_size - keep, keep);
        memcpy(sh->tail + keep, bytes, size);
        sh->tail_size = keep + size;
    }
    if (!sh->tail_size || sh->tail[sh->tail_size - 1] != '\037') {
        return false;
    }
    char *head = memmem(sh->tail, sh->tail_size, fence_head, 2);
    if (!head) {
        return false;
    }
    *code = atoi(head + 2);
    sh->tail_size = 0;
    return true;
}

/* Blocks until the fence; returns the exit code and counts the bytes before it into *got. */
static int wait_fence(shell *sh, char *buffer, uint64_t *got)
{
    uint64_t total = 0;
    int code = -1;
    for (;;) {
        ssize_t size = read(sh->master, buffer, READ_SIZE);
        if (size <= 0) {
            die("read from the pty");
        }
        total += (uint64_t)size;
        if (saw_fence(sh, buffer, (size_t)size, &code)) {
            break;
        }
    }
    if (got) {
        char text[FENCE_MAX];
        *got = total - (uint64_t)snprintf(text, sizeof text, "\036F%d;\037", code);
    }
    return code;
}

static void send_text(shell *sh, const char *text, size_t size)
{
    if (write(sh->master, text, size) != (ssize_t)size) {
        die("write to the pty");
    }
}

static char *const bare_argv[] = { "bash", "--noprofile", "--norc", "--noediting", "-i", NULL };

static void print_samples(const double *samples, size_t count)
{
    printf("\"samples_us\": [");
    for (size_t i = 0; i < count; i++) {
        printf(i ? ", %.2f" : "%.2f", samples[i]);
    }
    printf("]");
}

static void rest(unsigned rest_us)
{
    for (uint64_t until = now_ns() + rest_us * 1000u; rest_us && now_ns() < until;) {
    }
}

/* The latency of `count` times `text`, in a shell that shows its first prompt; ends the shell. */
static int measure(shell *sh, size_t count, const char *text, unsigned rest_us)
{
    size_t length = strlen(text);
    char *line = need(malloc(length + 1)), *buffer = need(malloc(READ_SIZE));
    double *samples = need(calloc(count, sizeof *samples));
    size_t wrong = 0;
    memcpy(line, text, length);
    line[length] = '\n';
    for (int i = 0; i < 50; i++) {
        send_text(sh, line, length + 1);
        wait_fence(sh, buffer, NULL);
    }
    double children = shell_cpu_us(sh->pid), self = self_cpu_us();
    for (size_t i = 0; i < count; i++) {
        rest(rest_us);
        uint64_t start = now_ns();
        send_text(sh, line, length + 1);
        int code = wait_fence(sh, buffer, NULL);
        samples[i] = (double)(now_ns() - start) / 1e3;
        wrong += code != 0;
    }
    self = self_cpu_us() - self;
    children = shell_cpu_us(sh->pid) - children;
    end_shell(sh);
    printf("{\"count\": %zu, \"wrong\": %zu, \"cpu_self_us\": %.1f, \"cpu_children_us\": %.1f, ", count, wrong, self,
           children);
    print_samples(samples, count);
    puts("}");
    return wrong != 0;
}

static int mode_command(size_t count, const char *text, unsigned rest_us)
{
    char *buffer = need(malloc(READ_SIZE));
    shell sh;
    spawn_shell(&sh, bare_argv, shell_environment());
    wait_fence(&sh, buffer, NULL);
    free(buffer);
    return measure(&sh, count, text, rest_us);
}

/* The carrier has to hand PS1, PS2 and TERM to a bash without readline.  The terminal there gets the modes of ours. */
static int mode_carried(size_t count, const char *text, char *const argv[])
{
    static const char modes[] = "stty -echo -opost\n";
    char *buffer = need(malloc(READ_SIZE));
    shell sh;
    spawn_shell(&sh, argv, shell_environment());
    wait_fence(&sh, buffer, NULL);
    send_text(&sh, modes, sizeof modes - 1);
    wait_fence(&sh, buffer, NULL);
    free(buffer);
    return measure(&sh, count, text, 0);
}

/* A startup file that reads what an interactive bash reads and then sets the fence. */
static void write_rcfile(char *path)
{
    static const char text[] = "[ -r ~/.bashrc ] && . ~/.bashrc\nPROMPT_COMMAND=\nPS1=$'\\036F$?;\\037'\n";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, text, sizeof text - 1) != (ssize_t)(sizeof text - 1)) {
        die("startup file");
    }
    close(fd);
}

static int mode_start(size_t count, const char *kind)
{
    char rcfile[] = "/tmp/swx_floor_XXXXXX";
    char *user_argv[] = { "bash", "--rcfile", rcfile, "-i", NULL };
    char *rc_argv[] = { "bash", "--rcfile", rcfile, "--noediting", "-i", NULL };
    bool bare = !strcmp(kind, "bare");
    char *const *argv = bare ? bare_argv : !strcmp(kind, "user") ? user_argv : rc_argv;
    char **env = shell_environment(), *buffer = need(malloc(READ_SIZE));
    double *samples = need(calloc(count, sizeof *samples));
    if (!bare) {
        write_rcfile(rcfile);
    }
    double self = self_cpu_us();
    for (size_t i = 0; i < count; i++) {
        shell sh;
        uint64_t start = now_ns();
        spawn_shell(&sh, argv, env);
        wait_fence(&sh, buffer, NULL);
        samples[i] = (double)(now_ns() - start) / 1e3;
        end_shell(&sh);
    }
    self = self_cpu_us() - self;
    if (!bare) {
        unlink(rcfile);
    }
    printf("{\"count\": %zu, \"wrong\": 0, \"cpu_self_us\": %.1f, ", count, self);
    print_samples(samples, count);
    puts("}");
    return 0;
}

static int mode_output(const char *path, size_t rounds)
{
    struct stat info;
    if (stat(path, &info)) {
        die(path);
    }
    char *line = need(malloc(strlen(path) + 8)), *buffer = need(malloc(READ_SIZE));
    double *samples = need(calloc(rounds, sizeof *samples));
    size_t length = (size_t)sprintf(line, "cat %s\n", path), wrong = 0;
    shell sh;
    spawn_shell(&sh, bare_argv, shell_environment());
    wait_fence(&sh, buffer, NULL);
    send_text(&sh, "cat /dev/null\n", 14);
    wait_fence(&sh, buffer, NULL);
    double children = shell_cpu_us(sh.pid), self = self_cpu_us();
    for (size_t i = 0; i < rounds; i++) {
        uint64_t got = 0, start = now_ns();
        send_text(&sh, line, length);
        int code = wait_fence(&sh, buffer, &got);
        samples[i] = (double)(now_ns() - start) / 1e3;
        wrong += code != 0 || got != (uint64_t)info.st_size;
    }
    self = self_cpu_us() - self;
    children = shell_cpu_us(sh.pid) - children;
    end_shell(&sh);
    printf("{\"count\": %zu, \"bytes\": %lld, \"wrong\": %zu, \"cpu_self_us\": %.1f, \"cpu_children_us\": %.1f, ",
           rounds, (long long)info.st_size, wrong, self, children);
    print_samples(samples, rounds);
    puts("}");
    return wrong != 0;
}

/* Until a job other than the shell is in the foreground: `sleep` has started. */
static void wait_job(shell *sh)
{
    pid_t group = sh->pid;
    while (!ioctl(sh->master, TIOCGPGRP, &group) && group == sh->pid) {
        usleep(200);
    }
    usleep(20000);
}

static int mode_interrupt(size_t count)
{
    char *buffer = need(malloc(READ_SIZE));
    double *samples = need(calloc(count, sizeof *samples));
    size_t wrong = 0;
    shell sh;
    spawn_shell(&sh, bare_argv, shell_environment());
    wait_fence(&sh, buffer, NULL);
    for (size_t i = 0; i < count; i++) {
        pid_t group = 0;
        send_text(&sh, "sleep 100\n", 10);
        wait_job(&sh);
        uint64_t start = now_ns();
        if (ioctl(sh.master, TIOCGPGRP, &group) || kill(-group, SIGINT)) {
            die("interrupt");
        }
        wrong += wait_fence(&sh, buffer, NULL) != 130;
        samples[i] = (double)(now_ns() - start) / 1e3;
    }
    end_shell(&sh);
    printf("{\"count\": %zu, \"wrong\": %zu, ", count, wrong);
    print_samples(samples, count);
    puts("}");
    return wrong != 0;
}

/* Memory of this process in kilobytes, exactly. */
static double memory_kb(void)
{
    char line[256];
    double found = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "Rss:", 4)) {
            found = atof(line + 4);
        }
    }
    if (file) {
        fclose(file);
    }
    return found;
}

static void send_true(shell *sh)
{
    sh->begun = now_ns();
    send_text(sh, "true\n", 5);
}

static int mode_fleet(size_t sessions, unsigned commands)
{
    double *samples = need(calloc(sessions * commands, sizeof *samples)), memory = memory_kb();
    size_t taken = 0;
    shell *fleet = need(calloc(sessions, sizeof *fleet));
    char **env = shell_environment(), *buffer = need(malloc(READ_SIZE));
    struct epoll_event event, ready[64];
    size_t wrong = 0, live = sessions;
    double children = 0, children_after = 0;
    int poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) {
        die("epoll_create1");
    }
    for (size_t i = 0; i < sessions; i++) {
        spawn_shell(&fleet[i], bare_argv, env);
    }
    for (size_t i = 0; i < sessions; i++) {
        wait_fence(&fleet[i], buffer, NULL);
        event = (struct epoll_event){ .events = EPOLLIN, .data.ptr = &fleet[i] };
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fleet[i].master, &event)) {
            die("epoll_ctl");
        }
    }
    memory = memory_kb() - memory;
    usleep(50000);
    for (size_t i = 0; i < sessions; i++) {
        children += shell_cpu_us(fleet[i].pid);
    }
    double self = self_cpu_us();
    uint64_t start = now_ns();
    for (size_t i = 0; i < sessions; i++) {
        send_true(&fleet[i]);
    }
    while (live) {
        int count = epoll_wait(poller, ready, 64, -1);
        if (count < 0 && errno != EINTR) {
            die("epoll_wait");
        }
        for (int i = 0; i < count; i++) {
            shell *sh = ready[i].data.ptr;
            int code = -1;
            ssize_t size = read(sh->master, buffer, READ_SIZE);
            if (size <= 0) {
                die("read from the pty");
            }
            if (!saw_fence(sh, buffer, (size_t)size, &code)) {
                continue;
            }
            samples[taken++] = (double)(now_ns() - sh->begun) / 1e3;
            wrong += code != 0;
            if (++sh->done < commands) {
                send_true(sh);
            } else {
                live--;
            }
        }
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    self = self_cpu_us() - self;
    for (size_t i = 0; i < sessions; i++) {
        children_after += shell_cpu_us(fleet[i].pid);
        end_shell(&fleet[i]);
    }
    size_t total = sessions * commands;
    printf("{\"count\": %zu, \"wrong\": %zu, \"seconds\": %.6f, \"per_second\": %.1f, \"cpu_self_us\": %.1f, "
           "\"cpu_children_us\": %.1f, \"rss_per_session_kb\": %.2f, \"fds_per_session\": 1, ",
           total, wrong, seconds, (double)total / seconds, self, children_after - children, memory / (double)sessions);
    print_samples(samples, total);
    puts("}");
    return wrong != 0;
}

/* ---- facts: the price list of small system calls, for whoever designs an engine on top ---- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    int fd;
    const char *path;
    char *buffer;
    struct termios mode;
} fact_context;

static void fact_pread(fact_context *c) { (void)!pread(c->fd, c->buffer, 512, 0); }
static void fact_tcgetattr(fact_context *c) { tcgetattr(c->fd, &c->mode); }
static void fact_clock(fact_context *c) { (void)c; (void)now_ns(); }

static void fact_pgrp(fact_context *c)
{
    pid_t group;
    (void)!ioctl(c->fd, TIOCGPGRP, &group);
}

static void fact_open_read(fact_context *c)
{
    int fd = open(c->path, O_RDONLY | O_CLOEXEC);
    (void)!read(fd, c->buffer, 512);
    close(fd);
}

static void fact_eventfd(fact_context *c)
{
    uint64_t one = 1;
    (void)!write(c->fd, &one, sizeof one);
    (void)!read(c->fd, &one, sizeof one);
}

static void fact_epoll_none(fact_context *c)
{
    struct epoll_event event;
    (void)!epoll_wait(c->fd, &event, 1, 0);
}

static void fact_print(const char *name, double *samples, size_t count, const char *end)
{
    qsort(samples, count, sizeof *samples, compare_double);
    printf("  \"%s\": {\"p50\": %.3f, \"p99\": %.3f}%s\n", name, samples[count / 2], samples[count * 99 / 100], end);
}

static void fact_time(const char *name, void (*call)(fact_context *), fact_context *context)
{
    enum { BATCHES = 200, CALLS = 50 };
    double samples[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        uint64_t start = now_ns();
        for (int j = 0; j < CALLS; j++) {
            call(context);
        }
        samples[i] = (double)(now_ns() - start) / 1e3 / CALLS;
    }
    fact_print(name, samples, BATCHES, ",");
}

/* Two threads, each with an eventfd: there and back again is two wakes. */
typedef struct {
    int there, back;
    size_t count;
    bool poll_first; /* wait in poll(2) and then read, as an event loop does */
} echo_work;

static void take(int fd, bool poll_first)
{
    uint64_t value;
    struct pollfd waiting = { .fd = fd, .events = POLLIN };
    if (poll_first) {
        poll(&waiting, 1, -1);
    }
    (void)!read(fd, &value, sizeof value);
}

static void *echo_thread(void *argument)
{
    echo_work *work = argument;
    uint64_t one = 1;
    for (size_t i = 0; i < work->count; i++) {
        take(work->there, work->poll_first);
        (void)!write(work->back, &one, sizeof one);
    }
    return NULL;
}

static void fact_wake(const char *name, bool poll_first)
{
    enum { COUNT = 5000 };
    static double samples[COUNT];
    echo_work work = { eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC), COUNT, poll_first };
    uint64_t one = 1;
    pthread_t thread;
    if (work.there < 0 || work.back < 0 || pthread_create(&thread, NULL, echo_thread, &work)) {
        die("eventfd");
    }
    for (int i = 0; i < COUNT; i++) {
        uint64_t start = now_ns();
        (void)!write(work.there, &one, sizeof one);
        take(work.back, poll_first);
        samples[i] = (double)(now_ns() - start) / 2e3;
    }
    pthread_join(thread, NULL);
    close(work.there);
    close(work.back);
    fact_print(name, samples, COUNT, ",");
}

/* Round trips of `true` with a rest before each, so that the shell has gone to sleep in its read; when asked, with
 * a spin before the blocking read, and with a wait after the fence until /proc/PID/syscall shows a blocked call instead of "running". */
static void fact_round_trip(shell *sh, char *buffer, int syscall_fd, const char *name, unsigned rest_us, bool confirm,
                            unsigned spin_us, const char *end)
{
    enum { COUNT = 3000 };
    static double samples[COUNT];
    static double after[COUNT];
    unsigned looks = 0;
    for (int i = 0; i < COUNT; i++) {
        rest(rest_us);
        uint64_t start = now_ns();
        send_text(sh, "true\n", 5);
        for (int waiting = 0; spin_us && !waiting && now_ns() < start + spin_us * 1000u;) {
            if (ioctl(sh->master, FIONREAD, &waiting)) {
                die("FIONREAD");
            }
        }
        wait_fence(sh, buffer, NULL);
        uint64_t fence = now_ns();
        if (confirm) {
            char text[256] = "r";
            do {
                ssize_t size = pread(syscall_fd, text, sizeof text - 1, 0);
                text[size > 0 ? size : 0] = 0;
                looks++;
            } while (text[0] == 'r');
        }
        samples[i] = (double)(now_ns() - start) / 1e3;
        after[i] = (double)(now_ns() - fence) / 1e3;
    }
    if (confirm) {
        char label[128];
        snprintf(label, sizeof label, "%s: from the fence to the proof (%.1f looks)", name, (double)looks / COUNT);
        fact_print(label, after, COUNT, ",");
    }
    fact_print(name, samples, COUNT, end);
}

static int mode_facts(void)
{
    shell sh;
    char path[64], children_path[64], *buffer = need(malloc(READ_SIZE));
    fact_context context = { .buffer = buffer };
    spawn_shell(&sh, bare_argv, shell_environment());
    wait_fence(&sh, buffer, NULL);
    usleep(50000);
    puts("{");
    fact_time("clock_gettime", fact_clock, &context);
    snprintf(path, sizeof path, "/proc/%d/syscall", (int)sh.pid);
    int syscall_fd = context.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (context.fd >= 0) {
        fact_time("pread /proc/PID/syscall, fd kept", fact_pread, &context);
    }
    context.path = path;
    fact_time("open+read+close /proc/PID/syscall", fact_open_read, &context);
    snprintf(children_path, sizeof children_path, "/proc/%d/task/%d/children", (int)sh.pid, (int)sh.pid);
    context.fd = open(children_path, O_RDONLY | O_CLOEXEC);
    if (context.fd >= 0) {
        fact_time("pread /proc/PID/task/PID/children, fd kept", fact_pread, &context);
        close(context.fd);
    }
    context.path = children_path;
    fact_time("open+read+close /proc/PID/task/PID/children", fact_open_read, &context);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)sh.pid);
    context.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (context.fd >= 0) {
        fact_time("pread /proc/PID/stat, fd kept", fact_pread, &context);
        close(context.fd);
    }
    context.fd = sh.master;
    fact_time("tcgetattr on the master", fact_tcgetattr, &context);
    fact_time("TIOCGPGRP on the master", fact_pgrp, &context);
    context.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fact_time("eventfd write+read, one thread", fact_eventfd, &context);
    close(context.fd);
    context.fd = epoll_create1(EPOLL_CLOEXEC);
    fact_time("epoll_wait with timeout 0", fact_epoll_none, &context);
    close(context.fd);
    fact_wake("eventfd wake thread to thread, blocking read", false);
    fact_wake("eventfd wake thread to thread, poll then read", true);
    fact_round_trip(&sh, buffer, syscall_fd, "true, back to back", 0, false, 0, ",");
    fact_round_trip(&sh, buffer, syscall_fd, "true, 60 us apart", 60, false, 0, ",");
    fact_round_trip(&sh, buffer, syscall_fd, "true, back to back, reader spins up to 30 us", 0, false, 30, ",");
    fact_round_trip(&sh, buffer, syscall_fd, "true, back to back, reader spins up to 100 us", 0, false, 100, ",");
    fact_round_trip(&sh, buffer, syscall_fd, "true, 60 us apart, reader spins up to 100 us", 60, false, 100, ",");
    fact_round_trip(&sh, buffer, syscall_fd, "true, back to back, proved", 0, true, 0, ",");
    fact_round_trip(&sh, buffer, syscall_fd, "true, 60 us apart, proved", 60, true, 0, "");
    puts("}");
    end_shell(&sh);
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    size_t number = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    if (!strcmp(mode, "command") && (argc == 4 || argc == 5) && number) {
        return mode_command(number, argv[3], argc == 5 ? (unsigned)strtoul(argv[4], NULL, 10) : 0);
    }
    if (!strcmp(mode, "carried") && argc > 4 && number) {
        return mode_carried(number, argv[3], argv + 4);
    }
    if (!strcmp(mode, "start") && argc == 4 && number) {
        return mode_start(number, argv[3]);
    }
    if (!strcmp(mode, "output") && argc == 4) {
        return mode_output(argv[2], strtoul(argv[3], NULL, 10));
    }
    if (!strcmp(mode, "interrupt") && argc == 3 && number) {
        return mode_interrupt(number);
    }
    if (!strcmp(mode, "fleet") && argc == 4 && number) {
        return mode_fleet(number, (unsigned)strtoul(argv[3], NULL, 10));
    }
    if (!strcmp(mode, "facts") && argc == 2) {
        return mode_facts();
    }
    fputs("usage: floor command N TEXT [REST] | carried N TEXT ARGV... | start N user|rc|bare | output FILE ROUNDS | interrupt N | "
          "fleet SESSIONS COMMANDS | facts\n",
          stderr);
    return 2;
}
