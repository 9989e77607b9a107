/* The shell is a child of this process, on a terminal of this machine. */
#include "swx_session_private.h"

#include <errno.h>
#include <signal.h>

static bool drop_input(swx_session *s)
{
    swx_pty_forget_input(&s->pty);
    return true;
}

/* A group of programs is signalled directly, so that the shell is not hit if they end in this moment; programs of
 * another user are signalled by the terminal, which needs no permission. */
static void interrupt(swx_session *s, swx_op *op, pid_t group, int64_t now)
{
    const bool program = is_program(s, group);
    swx_interrupt_note(s, op, group, now);
    op->missed = program && swx_kernel_is_over(group);
    op->unborn = program && swx_shell_is_program_of(s, group);
    s->interrupt.newborn = op->unborn ? group : 0;
    if (!program || (kill(-group, SIGINT) != 0 && errno == EPERM)) {
        op->missed = false;
        swx_pty_interrupt(&s->pty);
    }
}

const swx_transport swx_transport_pty = {
    .has_terminal = true,
    .has_processes = true,
    .silence = 20 * MS,
    .delivery = 50 * MS,
    .drop_input = drop_input,
    .interrupt = interrupt,
};
