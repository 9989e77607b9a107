#include "swx_pty.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "harness.h"

static swx_pty open_pty(void)
{
    swx_pty pty;
    swx_error err;
    CHECK(swx_pty_open(&pty, false, 24, 80, &err) == SWX_OK);
    return pty;
}

/* What arrives at the other end within a second, up to `size` bytes. */
static void expect(int fd, const char *text)
{
    char got[256];
    size_t size = 0, wanted = strlen(text);
    while (size < wanted) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        CHECK(poll(&ready, 1, 60000) == 1);
        ssize_t part = read(fd, got + size, sizeof(got) - size);
        CHECK(part > 0);
        size += (size_t)part;
    }
    CHECK(size == wanted && memcmp(got, text, size) == 0);
}

static void type(const swx_pty *pty, const char *text)
{
    CHECK(write(pty->master, text, strlen(text)) == (ssize_t)strlen(text));
}

static void print(const swx_pty *pty, const char *text)
{
    CHECK(write(pty->slave, text, strlen(text)) == (ssize_t)strlen(text));
}

static void test_open_and_close(void)
{
    size_t before = open_descriptors();
    swx_pty pty = open_pty();
    CHECK(open_descriptors() == before + 2);
    CHECK((fcntl(pty.master, F_GETFD) & FD_CLOEXEC) && (fcntl(pty.slave, F_GETFD) & FD_CLOEXEC));
    CHECK((fcntl(pty.master, F_GETFL) & O_NONBLOCK) && !(fcntl(pty.slave, F_GETFL) & O_NONBLOCK));
    CHECK(strncmp(pty.path, "/dev/pts/", 9) == 0);
    int again = open(pty.path, O_RDWR | O_NOCTTY);
    CHECK(again >= 0);
    close(again);
    swx_pty_close(&pty);
    CHECK(pty.master == -1 && pty.slave == -1 && open_descriptors() == before);
    swx_pty_close(&pty);
    CHECK(open_descriptors() == before);
}

static atomic_bool looks, looks_on;
static int first_free;

/* Any descriptor here that a program would inherit which another thread starts now. */
static void *look_for_heirlooms(void *found)
{
    while (atomic_load(&looks_on)) {
        for (int fd = first_free; fd < first_free + 6; fd++) {
            int flags = fcntl(fd, F_GETFD);
            if (flags >= 0 && !(flags & FD_CLOEXEC)) {
                atomic_fetch_add((atomic_int *)found, 1);
            }
        }
        atomic_store(&looks, true);
    }
    return NULL;
}

static void test_nobody_inherits(void)
{
    atomic_int found = 0;
    pthread_t thread;
    first_free = dup(0);
    CHECK(first_free > 2 && close(first_free) == 0);
    atomic_store(&looks_on, true);
    CHECK(pthread_create(&thread, NULL, look_for_heirlooms, &found) == 0);
    while (!atomic_load(&looks)) {
        sched_yield();
    }
    for (int i = 0; i < 1000; i++) {
        swx_pty pty = open_pty();
        swx_pty_close(&pty);
    }
    atomic_store(&looks_on, false);
    pthread_join(thread, NULL);
    CHECK(atomic_load(&found) == 0);
}

static void test_no_descriptors(void)
{
    size_t before = open_descriptors();
    for (rlim_t room = 0; room < 4; room++) { /* the sockets that carry them take two */
        swx_pty pty;
        swx_error err;
        take_descriptors_away(room);
        swx_status status = swx_pty_open(&pty, false, 24, 80, &err);
        give_descriptors_back();
        CHECK(status == SWX_ESYS && err.sys_errno == EMFILE && strcmp(err.call, "openpty") == 0);
        CHECK(pty.master == -1 && pty.slave == -1 && open_descriptors() == before);
    }
}

static void test_bytes_are_left_alone(void)
{
    swx_pty pty = open_pty();
    print(&pty, "a\nb\tc\r\xff");
    expect(pty.master, "a\nb\tc\r\xff");
    type(&pty, "line\ttab \xe2\x82\xac\r"); /* Enter sends CR */
    expect(pty.slave, "line\ttab \xe2\x82\xac\n");
    char byte;
    CHECK(read(pty.master, &byte, 1) == -1 && errno == EAGAIN); /* no echo */
    swx_pty_close(&pty);
}

static void test_input_consumed(void)
{
    swx_pty pty = open_pty();
    CHECK(swx_pty_input_consumed(&pty));
    type(&pty, "one\ntwo\n");
    CHECK(!swx_pty_input_consumed(&pty));
    expect(pty.slave, "one\n");
    CHECK(!swx_pty_input_consumed(&pty));
    expect(pty.slave, "two\n");
    CHECK(swx_pty_input_consumed(&pty));
    type(&pty, "half a line");
    CHECK(swx_pty_input_consumed(&pty)); /* nobody can read it yet */
    type(&pty, "\n");
    CHECK(!swx_pty_input_consumed(&pty));
    expect(pty.slave, "half a line\n");
    CHECK(swx_pty_input_consumed(&pty));
    type(&pty, "\4"); /* an end-of-file is input, too */
    CHECK(!swx_pty_input_consumed(&pty));
    swx_pty_close(&pty);
}

static void change(const swx_pty *pty, tcflag_t local, bool on, tcflag_t output)
{
    struct termios modes;
    CHECK(tcgetattr(pty->slave, &modes) == 0);
    modes.c_lflag = on ? modes.c_lflag | local : modes.c_lflag & ~local;
    modes.c_oflag |= output;
    CHECK(tcsetattr(pty->slave, TCSANOW, &modes) == 0);
}

static struct termios modes_of(const swx_pty *pty)
{
    struct termios modes;
    CHECK(tcgetattr(pty->slave, &modes) == 0);
    return modes;
}

static void test_modes(void)
{
    swx_pty pty = open_pty();
    CHECK(swx_pty_is_canonical(&pty));
    CHECK(!swx_pty_apply_modes(&pty, false));
    change(&pty, ICANON | ISIG, false, OPOST | ONLCR);
    CHECK(!swx_pty_is_canonical(&pty));
    CHECK(swx_pty_apply_modes(&pty, false)); /* a program that died in raw mode */
    CHECK(swx_pty_is_canonical(&pty) && !(modes_of(&pty).c_oflag & OPOST) && (modes_of(&pty).c_lflag & ISIG));
    CHECK(!swx_pty_apply_modes(&pty, false));
    change(&pty, ECHO, true, 0);
    CHECK(!swx_pty_apply_modes(&pty, false) && !(modes_of(&pty).c_lflag & ECHO));
    CHECK(!swx_pty_hide(&pty));
    change(&pty, ECHO, true, OPOST);
    struct termios wanted = modes_of(&pty);
    wanted.c_iflag = (wanted.c_iflag | IGNCR | INLCR | ISTRIP | IXOFF) & ~(tcflag_t)ICRNL;
    wanted.c_lflag &= ~(tcflag_t)(ICANON | ISIG);
    wanted.c_cc[VINTR] = 'a';
    wanted.c_cc[VERASE] = 'b';
    CHECK(tcsetattr(pty.slave, TCSANOW, &wanted) == 0);
    CHECK(swx_pty_apply_modes(&pty, true)); /* stty: the user's modes are kept; ours, and the keys, come back */
    for (int round = 0; round < 2; round++) {
        struct termios got = modes_of(&pty);
        CHECK(!(got.c_lflag & ECHO) && (got.c_iflag & IXOFF) && got.c_cc[VINTR] == 3);
        CHECK((got.c_lflag & ICANON) && (got.c_lflag & ISIG) && !(got.c_oflag & OPOST));
        CHECK((got.c_iflag & ICRNL) && !(got.c_iflag & (IGNCR | INLCR | ISTRIP)));
        CHECK(!swx_pty_apply_modes(&pty, true)); /* nobody has asked for the plain modes */
        CHECK(swx_pty_hide(&pty));
        swx_pty_show(&pty);
        CHECK((modes_of(&pty).c_lflag & ECHO) && (modes_of(&pty).c_iflag & IXOFF)); /* the user's own */
        change(&pty, ECHO | ICANON, false, 0);
        CHECK(!swx_pty_apply_modes(&pty, false));
    }
    swx_pty_close(&pty);
    CHECK(!swx_pty_apply_modes(&pty, true) && !swx_pty_is_canonical(&pty) && swx_pty_foreground(&pty) == -1);
}

/* A line that is typed to a terminal with echo, of every length that it takes: whole, at once, in its modes, and not
 * echoed. */
static void test_hidden_line(void)
{
    static char line[4096], got[4096];
    swx_pty pty = open_pty();
    CHECK(!swx_pty_hide(&pty)); /* nothing would be shown */
    change(&pty, ECHO | ECHONL, true, 0);
    CHECK(!swx_pty_apply_modes(&pty, true));
    memset(line, 'x', sizeof(line));
    for (size_t size = 0; size < 4095; size += size < 1030 || size > 4060 ? 1 : 29) {
        CHECK(swx_pty_hide(&pty));
        CHECK(write(pty.master, line, size) == (ssize_t)size);
        type(&pty, SWX_QUOTED_NEWLINE);
        CHECK(swx_pty_input_consumed(&pty)); /* nobody can read it yet */
        swx_pty_show(&pty);
        CHECK((modes_of(&pty).c_lflag & (ECHO | ECHONL)) == (ECHO | ECHONL) && swx_pty_input_consumed(&pty));
        CHECK(write(pty.master, &pty.baseline.c_cc[VEOF], 1) == 1);
        CHECK(!swx_pty_input_consumed(&pty));
        size_t taken = 0;
        while (taken <= size) { /* as bash reads */
            ssize_t part = read(pty.slave, got + taken, sizeof(got) - taken < 1024 ? sizeof(got) - taken : 1024);
            CHECK(part > 0);
            taken += (size_t)part;
        }
        CHECK(taken == size + 1 && memcmp(got, line, size) == 0 && got[size] == '\n' && swx_pty_input_consumed(&pty));
        CHECK(read(pty.master, got, sizeof(got)) == -1 && errno == EAGAIN);
        type(&pty, "answer\n");
        expect(pty.slave, "answer\n");
        expect(pty.master, "answer\n"); /* what is typed to a program is echoed */
        CHECK(!swx_pty_apply_modes(&pty, false) && !(modes_of(&pty).c_lflag & ECHO));
    }
    swx_pty_close(&pty);
}

/* For bytes that a terminal would act on. */
static void test_raw(void)
{
    swx_pty pty = open_pty();
    char bytes[256], got[256];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
    }
    swx_pty_set_raw(&pty, true);
    CHECK(!swx_pty_is_canonical(&pty) && write(pty.master, bytes, 256) == 256);
    CHECK(!swx_pty_input_consumed(&pty)); /* without a newline */
    CHECK(read(pty.slave, got, 256) == 256 && memcmp(got, bytes, 256) == 0 && swx_pty_input_consumed(&pty));
    CHECK(read(pty.master, got, 256) == -1 && errno == EAGAIN); /* no echo */
    swx_pty_set_raw(&pty, false);
    CHECK(swx_pty_is_canonical(&pty) && !swx_pty_apply_modes(&pty, false));
    type(&pty, "line\r");
    expect(pty.slave, "line\n");
    swx_pty_close(&pty);
}

static void test_size(void)
{
    swx_pty pty = open_pty();
    struct winsize size;
    CHECK(ioctl(pty.slave, TIOCGWINSZ, &size) == 0 && size.ws_row == 24 && size.ws_col == 80);
    swx_pty_close(&pty);
}

/* Bytes are left alone both ways from the start, and nothing is believed of the terminal that is carried. */
static void test_client(void)
{
    swx_pty pty;
    struct termios before, after;
    CHECK(swx_pty_open(&pty, true, 24, 80, NULL) == SWX_OK && pty.client);
    type(&pty, "a\003\004\r");
    expect(pty.slave, "a\003\004\r");
    print(&pty, "b\n");
    expect(pty.master, "b\n");
    change(&pty, ICANON | ECHO, true, OPOST | ONLCR);
    CHECK(tcgetattr(pty.slave, &before) == 0);
    CHECK(swx_pty_is_canonical(&pty) && swx_pty_foreground(&pty) == -1);
    CHECK(!swx_pty_apply_modes(&pty, false) && !swx_pty_apply_modes(&pty, true));
    CHECK(tcgetattr(pty.slave, &after) == 0 && before.c_lflag == after.c_lflag && before.c_oflag == after.c_oflag);
    change(&pty, ICANON, false, 0);
    CHECK(swx_pty_is_canonical(&pty));
    swx_pty_close(&pty);
}

TEST_MAIN(test_open_and_close, test_nobody_inherits, test_no_descriptors, test_bytes_are_left_alone,
          test_input_consumed, test_modes, test_hidden_line, test_raw, test_size, test_client)
