/* floor.c: what the machine itself costs, in plain C with nothing of the product in it.
 *
 * Each mode does by the shortest way what one of the rows asks for: a bash on a pty whose prompt is the fence, one
 * write per command, blocking reads until the fence is there.  No timeouts, no proof, nothing kept: a session engine
 * cannot be faster than this on the same machine, only close to it.  Answers are checked by their exit code and their
 * number of bytes.
 *
 *   floor command COUNT SECONDS TEXT BYTES one session; TEXT again and again, which prints so many bytes
 *   floor start COUNT SECONDS              from spawn to the first prompt, with startup files
 *   floor interrupt COUNT SECONDS          SIGINT to the foreground group of `sleep 100` until the prompt
 *   floor sessions COUNT SECONDS NUMBER    so many sessions at once on one epoll; `true` in each
 *
 * It takes COUNT samples, or those that fit into SECONDS, and at least one, and prints one JSON object with times in
 * microseconds.  The terminal is in the mode that the product uses: canonical, no echo, no output processing.
 *
 * Build: cc -O2 -std=c11 -D_GNU_SOURCE floor.c -o floor -lutil
 */
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { READ_SIZE = 65536, FENCE_MAX = 24 };

/* The prompt: \036 F <exit code> ; \037.  The data files hold neither control byte. */
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

/* The environment without prompts of the caller's.  Never freed: lives for the run. */
static char **shell_environment(void)
{
    size_t count = 0, used = 0;
    while (environ[count]) {
        count++;
    }
    char **out = need(calloc(count + 1, sizeof *out));
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], "PS", 2) && strncmp(environ[i], "PROMPT_COMMAND=", 15)) {
            out[used++] = environ[i];
        }
    }
    return out;
}

/* A startup file that reads what an interactive bash reads and then sets the fence. */
static char startup[] = "/tmp/swx_floor_XXXXXX";

static void remove_startup(void)
{
    unlink(startup);
}

static void write_startup(void)
{
    static const char text[] = "[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc\n"
                               "[[ ! -r ~/.bashrc ]] || . ~/.bashrc\n"
                               "unset PROMPT_COMMAND\n"
                               "PS2= PS1=$'\\036F$?;\\037'\n";
    int fd = mkstemp(startup);
    if (fd < 0 || write(fd, text, sizeof text - 1) != (ssize_t)(sizeof text - 1)) {
        die("startup file");
    }
    close(fd);
    atexit(remove_startup);
}

static void spawn_shell(shell *sh, char **env)
{
    static char *const argv[] = { "bash", "--noediting", "--rcfile", startup, "-i", NULL };
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

static void start_shell(shell *sh, char *buffer)
{
    spawn_shell(sh, shell_environment());
    wait_fence(sh, buffer, NULL);
}

/* more: further members of the object, each with a comma behind it. */
static void print_result(size_t count, size_t wrong, const double *samples, const char *more)
{
    printf("{\"count\": %zu, \"wrong\": %zu, %s\"samples_us\": [", count, wrong, more);
    for (size_t i = 0; i < count; i++) {
        printf(i ? ", %.2f" : "%.2f", samples[i]);
    }
    puts("]}");
}

/* True for the first sample, and then until there are as many as asked for or the time is over. */
static bool goes_on(size_t taken, size_t count, uint64_t until)
{
    return !taken || (taken < count && now_ns() < until);
}

/* bytes: the size of the text's output. */
static int mode_command(size_t count, uint64_t until, const char *text, uint64_t bytes)
{
    size_t length = strlen(text), wrong = 0, taken = 0;
    char *line = need(malloc(length + 1)), *buffer = need(malloc(READ_SIZE));
    double *samples = need(calloc(count, sizeof *samples));
    shell sh;
    memcpy(line, text, length);
    line[length] = '\n';
    start_shell(&sh, buffer);
    for (int i = 0; !bytes && i < 3; i++) {
        send_text(&sh, line, length + 1);
        wait_fence(&sh, buffer, NULL);
    }
    for (; goes_on(taken, count, until); taken++) {
        uint64_t start = now_ns(), got = 0;
        send_text(&sh, line, length + 1);
        int code = wait_fence(&sh, buffer, &got);
        samples[taken] = (double)(now_ns() - start) / 1e3;
        wrong += code != 0 || got != bytes;
    }
    end_shell(&sh);
    print_result(taken, wrong, samples, "");
    return 0;
}

static int mode_start(size_t count, uint64_t until)
{
    char **env = shell_environment(), *buffer = need(malloc(READ_SIZE));
    double *samples = need(calloc(count, sizeof *samples));
    size_t taken = 0;
    for (; goes_on(taken, count, until); taken++) {
        shell sh;
        uint64_t start = now_ns();
        spawn_shell(&sh, env);
        wait_fence(&sh, buffer, NULL);
        samples[taken] = (double)(now_ns() - start) / 1e3;
        end_shell(&sh);
    }
    print_result(taken, 0, samples, "");
    return 0;
}

/* Until `sleep` is in the foreground: a child of bash may forget a signal that comes before its exec. */
static void wait_sleep(shell *sh)
{
    char path[32], name[8] = "";
    pid_t group;
    while (strcmp(name, "sleep\n")) {
        usleep(200);
        if (ioctl(sh->master, TIOCGPGRP, &group)) {
            die("foreground");
        }
        snprintf(path, sizeof path, "/proc/%d/comm", (int)group);
        FILE *file = fopen(path, "r");
        if (!file || !fgets(name, sizeof name, file) || fclose(file)) {
            die(path);
        }
    }
    usleep(20000);
}

static int mode_interrupt(size_t count, uint64_t until)
{
    char *buffer = need(malloc(READ_SIZE));
    double *samples = need(calloc(count, sizeof *samples));
    size_t wrong = 0, taken = 0;
    shell sh;
    start_shell(&sh, buffer);
    for (; goes_on(taken, count, until); taken++) {
        pid_t group = 0;
        send_text(&sh, "sleep 100\n", 10);
        wait_sleep(&sh);
        uint64_t start = now_ns();
        if (ioctl(sh.master, TIOCGPGRP, &group) || kill(-group, SIGINT)) {
            die("interrupt");
        }
        wrong += wait_fence(&sh, buffer, NULL) != 130;
        samples[taken] = (double)(now_ns() - start) / 1e3;
    }
    end_shell(&sh);
    print_result(taken, wrong, samples, "");
    return 0;
}

static void send_true(shell *sh)
{
    sh->begun = now_ns();
    send_text(sh, "true\n", 5);
}

static int mode_sessions(size_t most, double seconds, size_t sessions)
{
    enum { EACH = 4000 }; /* commands of a session at most */
    size_t room = sessions * EACH, taken = 0, wrong = 0, live = sessions;
    double *samples = need(calloc(room, sizeof *samples));
    shell *all = need(calloc(sessions, sizeof *all));
    char **env = shell_environment(), *buffer = need(malloc(READ_SIZE)), more[160];
    struct epoll_event event, ready[64];
    int poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) {
        die("epoll_create1");
    }
    for (size_t i = 0; i < sessions; i++) {
        spawn_shell(&all[i], env);
    }
    for (size_t i = 0; i < sessions; i++) {
        wait_fence(&all[i], buffer, NULL);
        event = (struct epoll_event){ .events = EPOLLIN, .data.ptr = &all[i] };
        if (epoll_ctl(poller, EPOLL_CTL_ADD, all[i].master, &event)) {
            die("epoll_ctl");
        }
    }
    uint64_t start = now_ns(), until = start + (uint64_t)(seconds * 1e9);
    for (size_t i = 0; i < sessions; i++) {
        send_true(&all[i]);
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
            if (++sh->done < most && sh->done < EACH && now_ns() < until) {
                send_true(sh);
            } else {
                live--;
            }
        }
    }
    double took = (double)(now_ns() - start) / 1e9;
    for (size_t i = 0; i < sessions; i++) {
        end_shell(&all[i]);
    }
    snprintf(more, sizeof more, "\"per_second\": %.1f, ", (double)taken / took);
    print_result(taken, wrong, samples, more);
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    size_t count = argc > 3 ? strtoul(argv[2], NULL, 10) : 0;
    double seconds = argc > 3 ? atof(argv[3]) : 0;
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9);
    write_startup();
    if (count && argc == 4 && !strcmp(mode, "start")) {
        return mode_start(count, until);
    }
    if (count && argc == 4 && !strcmp(mode, "interrupt")) {
        return mode_interrupt(count, until);
    }
    if (count && argc == 6 && !strcmp(mode, "command")) {
        return mode_command(count, until, argv[4], strtoull(argv[5], NULL, 10));
    }
    if (count && argc == 5 && !strcmp(mode, "sessions")) {
        return mode_sessions(count, seconds, strtoul(argv[4], NULL, 10));
    }
    fputs("usage: floor start|interrupt COUNT SECONDS | command COUNT SECONDS TEXT BYTES |\n"
          "       sessions COUNT SECONDS NUMBER\n",
          stderr);
    return 2;
}
