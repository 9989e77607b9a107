#include "swx_pty.h"
#include "swx_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdalign.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MASTER, SLAVE, ENDS };

typedef union {
    char room[CMSG_SPACE(ENDS * sizeof(int))];
    struct cmsghdr aligned;
} control;

/* openpty has no flag for close-on-exec, and a program that another thread starts meanwhile would inherit both ends. So
 * it runs in a child that shares everything with this process but the descriptors, and sends them here. */
typedef struct {
    int socket;
    const struct termios *modes;
    const struct winsize *size;
    int failed; /* out: an errno, or 0 */
    alignas(16) char stack[32 * 1024];
} opening;

static int open_in_child(void *argument)
{
    opening *o = argument;
    int ends[ENDS];
    char byte = 0;
    control c = { { 0 } };
    struct iovec text = { &byte, 1 };
    struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c) };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(ends)) };
    if (openpty(&ends[MASTER], &ends[SLAVE], NULL, o->modes, o->size) == 0) {
        memcpy(CMSG_DATA(header), ends, sizeof(ends));
        o->failed = sendmsg(o->socket, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
    } else {
        o->failed = errno;
    }
    return 0;
}

/* Returns what failed, as an errno, or 0. */
static int take_over(int socket, int ends[ENDS])
{
    control c;
    char byte;
    struct iovec text = { &byte, 1 };
    struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c) };
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) < 0) {
        return errno;
    }
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    /* Fewer than were sent, if the limit of descriptors is reached. */
    size_t taken = header ? header->cmsg_len - CMSG_LEN(0) : 0;
    if (taken) {
        memcpy(ends, CMSG_DATA(header), taken);
    }
    if (taken == sizeof(int)) {
        close(ends[MASTER]);
    }
    return taken == ENDS * sizeof(int) ? 0 : EMFILE;
}

/* Both ends are close-on-exec from the start.  Returns an errno, or 0. */
static int open_pair(int ends[ENDS], const struct termios *modes, const struct winsize *size)
{
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
        return errno;
    }
    opening o; /* member by member: the stack needs no zeros */
    o.socket = sockets[1];
    o.modes = modes;
    o.size = size;
    pid_t pid = swx_child_clone(open_in_child, &o, o.stack, sizeof(o.stack), 0, NULL);
    int failed = pid < 0 ? errno : o.failed;
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    failed = failed ? failed : take_over(sockets[0], ends);
    close(sockets[0]);
    close(sockets[1]);
    return failed;
}

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

swx_status swx_pty_open(swx_pty *pty, bool client, unsigned rows, unsigned columns, swx_error *err)
{
    struct winsize size = { .ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns };
    *pty = (swx_pty){ .master = -1, .slave = -1, .client = client, .baseline = session_modes() };
    if (client) {
        cfmakeraw(&pty->baseline);
    }
    int ends[ENDS], failed = open_pair(ends, &pty->baseline, &size);
    if (failed) {
        return swx_fail_sys(err, "openpty", failed);
    }
    pty->master = ends[MASTER];
    pty->slave = ends[SLAVE];
    const char *call = fcntl(pty->master, F_SETFL, O_RDWR | O_NONBLOCK) != 0                       ? "fcntl(F_SETFL)"
                       : ttyname_r(pty->slave, pty->path, sizeof(pty->path)) != 0                  ? "ttyname_r"
                       : tcgetattr(pty->slave, &pty->baseline) != 0 /* as the kernel keeps them */ ? "tcgetattr"
                                                                                                   : NULL;
    pty->plain = pty->baseline;
    if (call) {
        failed = errno;
        swx_pty_close(pty);
        return swx_fail_sys(err, call, failed);
    }
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
    int ends[ENDS];
    bool right = open_pair(ends, &modes, NULL) == 0;
    if (!right) {
        return false;
    }
    int master = ends[MASTER], slave = ends[SLAVE];
    for (size_t i = 0; right && i < SWX_COUNT(steps); i++) {
        char got[8];
        struct pollfd waiting = { .fd = slave, .events = POLLIN };
        ssize_t size = (ssize_t)strlen(steps[i].typed), wanted = (ssize_t)strlen(steps[i].read);
        right =
            write(master, steps[i].typed, (size_t)size) == size && poll(&waiting, 1, 0) == (wanted > 0) &&
            (!wanted || (read(slave, got, sizeof(got)) == wanted && memcmp(got, steps[i].read, (size_t)wanted) == 0));
    }
    close(slave);
    close(master);
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

void swx_pty_start_output(const swx_pty *pty)
{
    tcflow(pty->slave, TCOOFF); /* TCOON does nothing behind ^S alone */
    tcflow(pty->slave, TCOON);
}

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
