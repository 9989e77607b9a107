#include "swx_pty.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The modes of a fresh Linux terminal without echo and output post-processing, independent of this process's own
 * terminal. */
static struct termios session_modes(void)
{
    struct termios modes = { 0 };
    modes.c_iflag = ICRNL | IXON | IUTF8;
    modes.c_oflag = ONLCR; /* without OPOST it has no effect until a program asks for both */
    modes.c_cflag = CS8 | CREAD | HUPCL;
    modes.c_lflag = ISIG | ICANON | IEXTEN;
    const struct {
        int index;
        cc_t value;
    } keys[] = {
        { VINTR, 3 },    { VQUIT, 28 },  { VERASE, 127 }, { VKILL, 21 },    { VEOF, 4 },
        { VSTART, 17 },  { VSTOP, 19 },  { VSUSP, 26 },   { VREPRINT, 18 }, { VDISCARD, 15 },
        { VWERASE, 23 }, { VLNEXT, 22 }, { VMIN, 1 },     { VTIME, 0 },
    };
    for (size_t i = 0; i < SWX_COUNT(keys); i++) {
        modes.c_cc[keys[i].index] = keys[i].value;
    }
    cfsetispeed(&modes, B38400);
    cfsetospeed(&modes, B38400);
    return modes;
}

/* Opens the slave through the master, because the path may lead elsewhere if the root or /dev has changed. */
static int open_slave(const swx_pty *pty, const char **call)
{
    const int flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
#ifdef TIOCGPTPEER
    *call = "ioctl(TIOCGPTPEER)";
    int fd = ioctl(pty->master, TIOCGPTPEER, flags);
    if (fd >= 0 || (errno != EINVAL && errno != ENOTTY)) { /* those two: the kernel is older than 4.13 */
        return fd;
    }
#endif
    *call = "open(terminal)";
    return open(pty->path, flags);
}

/* Opens both ends, close-on-exec from the start, which openpty has no flag for: a program that another thread starts
 * meanwhile would inherit them.  False: *call has failed, and its errno is set. */
static bool open_pair(swx_pty *pty, const struct termios *modes, const char **call)
{
    pty->slave = -1;
    *call = "posix_openpt";
    pty->master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (pty->master < 0) {
        return false;
    }
    *call = grantpt(pty->master) != 0                                   ? "grantpt"
            : unlockpt(pty->master) != 0                                ? "unlockpt"
            : ptsname_r(pty->master, pty->path, sizeof(pty->path)) != 0 ? "ptsname_r"
            : (pty->slave = open_slave(pty, call)) < 0                  ? *call
            : ttyname_r(pty->slave, pty->path, sizeof(pty->path)) != 0  ? "ttyname_r"
            : tcsetattr(pty->slave, TCSANOW, modes) != 0                ? "tcsetattr"
                                                                        : NULL;
    if (*call) {
        int failed = errno;
        swx_pty_close(pty);
        errno = failed;
    }
    return !*call;
}

swx_status swx_pty_open(swx_pty *pty, bool client, unsigned rows, unsigned columns, swx_error *err)
{
    struct winsize size = { .ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns };
    const char *call;
    *pty = (swx_pty){ .client = client, .baseline = session_modes() };
    if (client) {
        cfmakeraw(&pty->baseline);
    }
    if (!open_pair(pty, &pty->baseline, &call)) {
        return swx_fail_sys(err, call, errno);
    }
    ioctl(pty->master, TIOCSWINSZ, &size);
    tcgetattr(pty->slave, &pty->baseline); /* as the kernel keeps them */
    pty->plain = pty->baseline;
    return SWX_OK;
}

void swx_pty_close(swx_pty *pty)
{
    swx_close(&pty->slave);
    swx_close(&pty->master);
}

bool swx_pty_park(swx_pty *pty)
{
    int alone = 0;
    if (ioctl(pty->slave, TIOCGEXCL, &alone) == 0 && alone) {
        return false;
    }
    swx_close(&pty->slave);
    return true;
}

swx_status swx_pty_unpark(swx_pty *pty, swx_error *err)
{
    const char *call;
    if (pty->slave < 0) {
        pty->slave = open_slave(pty, &call);
    }
    return pty->slave >= 0 ? SWX_OK : swx_fail_sys(err, call, errno);
}

static bool same_modes(const struct termios *a, const struct termios *b)
{
    return a->c_iflag == b->c_iflag && a->c_oflag == b->c_oflag && a->c_cflag == b->c_cflag &&
           a->c_lflag == b->c_lflag && memcmp(a->c_cc, b->c_cc, sizeof(a->c_cc)) == 0;
}

/* The modes to type a command in: those given, less what would show or change it. */
static struct termios typing_modes(const swx_pty *pty, struct termios modes)
{
    modes.c_iflag = (modes.c_iflag & ~(tcflag_t)(IGNCR | INLCR | ISTRIP | IUCLC | PARMRK | INPCK)) | ICRNL;
    modes.c_lflag = (modes.c_lflag & ~(tcflag_t)(ECHO | ECHONL | XCASE | EXTPROC)) | ICANON | ISIG | IEXTEN;
    memcpy(modes.c_cc, pty->plain.c_cc, sizeof(modes.c_cc));
    return modes;
}

/* Whether this kernel's terminals quote a newline.  Where they do not (gVisor), the end of input behind it would end
 * the shell. */
static bool quotes_newlines(void)
{
    static const struct {
        const char *typed, *read;
    } steps[] = { { SWX_QUOTED_NEWLINE, "" }, { "\004", "\n" } };
    struct termios modes = session_modes();
    const char *call;
    swx_pty pty;
    bool right = open_pair(&pty, &modes, &call);
    for (size_t i = 0; right && i < SWX_COUNT(steps); i++) {
        char got[8];
        struct pollfd waiting = { .fd = pty.slave, .events = POLLIN };
        ssize_t size = (ssize_t)strlen(steps[i].typed), wanted = (ssize_t)strlen(steps[i].read);
        right = write(pty.master, steps[i].typed, (size_t)size) == size && poll(&waiting, 1, 0) == (wanted > 0) &&
                (!wanted ||
                 (read(pty.slave, got, sizeof(got)) == wanted && memcmp(got, steps[i].read, (size_t)wanted) == 0));
    }
    swx_pty_close(&pty);
    return right;
}

bool swx_pty_apply_modes(swx_pty *pty, bool keep)
{
    struct termios now;
    if (pty->client || tcgetattr(pty->master, &now) != 0) {
        return false;
    }
    bool processed = (now.c_oflag & OPOST) && (now.c_oflag & ONLCR);
    if (keep && !pty->typing && !same_modes(&now, &pty->baseline)) {
        /* Commands reach the shell as lines, and output leaves it as bytes: these modes stay ours. */
        struct termios ours = now;
        ours.c_lflag = (ours.c_lflag & ~(tcflag_t)EXTPROC) | ICANON | ISIG;
        ours.c_iflag |= ICRNL;
        ours.c_iflag &= ~(tcflag_t)(IGNCR | INLCR | ISTRIP);
        ours.c_oflag &= ~(tcflag_t)OPOST;
        memcpy(ours.c_cc, pty->baseline.c_cc, sizeof(ours.c_cc)); /* a letter that erases would eat commands */
        pty->plain = typing_modes(pty, ours);
        pty->baseline = same_modes(&pty->plain, &ours) || quotes_newlines() ? ours : pty->plain;
    }
    if (!same_modes(&now, &pty->plain)) {
        tcsetattr(pty->master, TCSANOW, &pty->plain);
    }
    pty->typing = true;
    return processed;
}

bool swx_pty_hide(swx_pty *pty)
{
    if (pty->client) {
        return false;
    }
    bool differ = !same_modes(&pty->baseline, &pty->plain);
    if (differ && !pty->typing) {
        tcsetattr(pty->master, TCSANOW, &pty->plain);
    }
    pty->typing = differ;
    return differ;
}

void swx_pty_show(swx_pty *pty)
{
    swx_pty_input_consumed(pty); /* so that all typed input has arrived in the present modes */
    tcsetattr(pty->master, TCSANOW, &pty->baseline);
    pty->typing = false;
}

void swx_pty_set_raw(swx_pty *pty, bool raw)
{
    if (raw && tcgetattr(pty->master, &pty->cooked) != 0) {
        pty->cooked = pty->baseline;
    }
    struct termios modes = pty->cooked;
    if (raw) {
        modes.c_iflag = 0;
        modes.c_lflag &= ~(tcflag_t)(ICANON | ISIG | IEXTEN | ECHO);
        modes.c_cc[VMIN] = 1;
        modes.c_cc[VTIME] = 0;
    }
    tcsetattr(pty->master, TCSANOW, &modes);
}

void swx_pty_interrupt(const swx_pty *pty) { ioctl(pty->master, TIOCSIG, SIGINT); }

pid_t swx_pty_foreground(const swx_pty *pty)
{
    pid_t group = -1;
    return !pty->client && ioctl(pty->master, TIOCGPGRP, &group) == 0 ? group : -1;
}

bool swx_pty_is_canonical(const swx_pty *pty)
{
    struct termios now;
    return pty->client || (tcgetattr(pty->master, &now) == 0 && (now.c_lflag & ICANON));
}

bool swx_pty_input_consumed(const swx_pty *pty)
{
    struct pollfd waiting = { .fd = pty->slave, .events = POLLIN };
    return pty->slave >= 0 && poll(&waiting, 1, 0) == 0;
}

uint8_t swx_pty_end_of_input(const swx_pty *pty)
{
    struct termios now;
    return tcgetattr(pty->master, &now) == 0 && now.c_cc[VEOF] ? now.c_cc[VEOF] : 4;
}

void swx_pty_forget_input(const swx_pty *pty) { tcflush(pty->slave, TCIFLUSH); }
