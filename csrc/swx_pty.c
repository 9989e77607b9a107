#include "swx_pty.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static swx_status set_flags(int fd, int status_flags, swx_error *err)
{
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return swx_fail_sys(err, "fcntl(F_SETFD)", errno);
    }
    if (status_flags && fcntl(fd, F_SETFL, O_RDWR | status_flags) != 0) {
        return swx_fail_sys(err, "fcntl(F_SETFL)", errno);
    }
    return SWX_OK;
}

static struct winsize screen(unsigned rows, unsigned columns)
{
    return (struct winsize){ .ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns };
}

/* Modes of a fresh Linux terminal less echo and output post-processing.  Set in full, so that they do not depend
 * on the terminal this process happens to have. */
static struct termios session_modes(void)
{
    struct termios modes = { 0 };
    modes.c_iflag = ICRNL | IXON | IUTF8;
    modes.c_oflag = ONLCR; /* without OPOST it has no effect until a program asks for both */
    modes.c_cflag = CS8 | CREAD | HUPCL;
    modes.c_lflag = ISIG | ICANON | IEXTEN;
    const struct { int index; cc_t value; } keys[] = {
        { VINTR, 3 }, { VQUIT, 28 }, { VERASE, 127 }, { VKILL, 21 }, { VEOF, 4 }, { VSTART, 17 }, { VSTOP, 19 },
        { VSUSP, 26 }, { VREPRINT, 18 }, { VDISCARD, 15 }, { VWERASE, 23 }, { VLNEXT, 22 }, { VMIN, 1 }, { VTIME, 0 },
    };
    for (size_t i = 0; i < SWX_COUNT(keys); i++) {
        modes.c_cc[keys[i].index] = keys[i].value;
    }
    cfsetispeed(&modes, B38400);
    cfsetospeed(&modes, B38400);
    return modes;
}

swx_status swx_pty_open(swx_pty *pty, bool carrier, unsigned rows, unsigned columns, swx_error *err)
{
    struct winsize size = screen(rows, columns);
    *pty = (swx_pty){ .master = -1, .slave = -1, .carrier = carrier, .baseline = session_modes() };
    if (carrier) {
        cfmakeraw(&pty->baseline);
    }
    if (openpty(&pty->master, &pty->slave, NULL, &pty->baseline, &size) != 0) {
        pty->master = pty->slave = -1;
        return swx_fail_sys(err, "openpty", errno);
    }
    swx_status status = set_flags(pty->master, O_NONBLOCK, err);
    if (status == SWX_OK) {
        status = set_flags(pty->slave, 0, err);
    }
    if (status == SWX_OK && ttyname_r(pty->slave, pty->path, sizeof(pty->path)) != 0) {
        status = swx_fail_sys(err, "ttyname_r", errno);
    }
    if (status == SWX_OK && tcgetattr(pty->slave, &pty->baseline) != 0) { /* as the kernel keeps them */
        status = swx_fail_sys(err, "tcgetattr", errno);
    }
    if (status != SWX_OK) {
        swx_pty_close(pty);
    }
    return status;
}

static void close_slave(swx_pty *pty)
{
    if (pty->slave >= 0) {
        close(pty->slave);
    }
    pty->slave = -1;
}

void swx_pty_close(swx_pty *pty)
{
    close_slave(pty);
    if (pty->master >= 0) {
        close(pty->master);
    }
    pty->master = -1;
}

bool swx_pty_rest(swx_pty *pty)
{
    int alone = 0;
    if (ioctl(pty->slave, TIOCGEXCL, &alone) == 0 && alone) {
        return false;
    }
    close_slave(pty);
    return true;
}

/* By the master, because the path may lead elsewhere by now: this process may have another root, or /dev been mounted anew. */
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

swx_status swx_pty_rouse(swx_pty *pty, swx_error *err)
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

bool swx_pty_settle_modes(swx_pty *pty, bool keep)
{
    struct termios now;
    if (pty->carrier || tcgetattr(pty->master, &now) != 0) {
        return false;
    }
    bool processed = (now.c_oflag & OPOST) && (now.c_oflag & ONLCR);
    if (!same_modes(&now, &pty->baseline)) {
        if (keep) {
            /* Lines are how commands reach the shell and bytes are how output leaves it: those two stay ours. */
            now.c_lflag |= ICANON | ISIG;
            now.c_iflag |= ICRNL;
            now.c_iflag &= ~(tcflag_t)(IGNCR | INLCR | ISTRIP);
            now.c_oflag &= ~(tcflag_t)OPOST;
            memcpy(now.c_cc, pty->baseline.c_cc, sizeof(now.c_cc)); /* a letter that erases would eat commands */
            pty->baseline = now;
        }
        tcsetattr(pty->master, TCSANOW, &pty->baseline);
    }
    return processed;
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

swx_status swx_pty_signal(const swx_pty *pty, int signal_number, swx_error *err)
{
    if (ioctl(pty->master, TIOCSIG, signal_number) != 0) {
        return swx_fail_sys(err, "ioctl(TIOCSIG)", errno);
    }
    return SWX_OK;
}

pid_t swx_pty_foreground(const swx_pty *pty)
{
    pid_t group = -1;
    return !pty->carrier && ioctl(pty->master, TIOCGPGRP, &group) == 0 ? group : -1;
}

bool swx_pty_is_canonical(const swx_pty *pty)
{
    struct termios now;
    return pty->carrier || (tcgetattr(pty->master, &now) == 0 && (now.c_lflag & ICANON));
}

bool swx_pty_input_consumed(const swx_pty *pty)
{
    struct pollfd waiting = { .fd = pty->slave, .events = POLLIN };
    return pty->slave >= 0 && poll(&waiting, 1, 0) == 0;
}

void swx_pty_forget_input(const swx_pty *pty) { tcflush(pty->slave, TCIFLUSH); }

swx_status swx_pty_resize(const swx_pty *pty, unsigned rows, unsigned columns, swx_error *err)
{
    struct winsize size = screen(rows, columns);
    if (ioctl(pty->master, TIOCSWINSZ, &size) != 0) {
        return swx_fail_sys(err, "ioctl(TIOCSWINSZ)", errno);
    }
    return SWX_OK;
}
