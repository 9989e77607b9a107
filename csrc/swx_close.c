/* Ends the shell, and the session with everything that it started. */
#include "swx_session_private.h"
#include "swx_tree.h"

#include <signal.h>

enum { CLOSE_SWEEPS = 400 };
enum { SHORT_SWEEPS = 20 };                   /* after these, sweeps come less often */
static const int64_t CLOSE_GRACE = 1000 * MS; /* for the shell to end by itself, because it may be saving its history */
static const int64_t CLOSE_LOOK = 20 * MS;

/* Closes the descriptors by which a living shell is watched. */
static void give_up_shell(swx_session *s)
{
    if (s->unwatch) {
        s->unwatch(s->owner, s->child.pidfd);
    }
    swx_child_close(&s->child);
    swx_kernel_close(&s->kernel);
}

void swx_session_ended(swx_session *s, int64_t now)
{
    if (s->state == CLOSED || s->facts.dead || !swx_child_ended(&s->child)) {
        return;
    }
    bool more = true;
    for (unsigned round = 0; more && round < 64; round++) {
        more = swx_output_read(s, true, now);
    }
    if (s->output.cr_held) {
        swx_output_take_plain(s, (const uint8_t *)"\r", 1);
        s->output.cr_held = false;
    }
    swx_completion_take_held(s);
    s->facts.dead = true;
    s->check = SWX_NEVER;
    give_up_shell(s);
    if (s->state == CLOSING) {
        s->close.step = now;
        return;
    }
    swx_session_claim_start(s);
    s->parking.idle_since = s->state == IDLE ? s->parking.idle_since : 0;
    s->state = DEAD;
    swx_session_finish_all(s, SWX_END_DIED, swx_child_code(&s->child));
}

static void close_finally(swx_session *s)
{
    s->state = CLOSED;
    if (s->unwatch) {
        s->unwatch(s->owner, s->pty.master);
    }
    give_up_shell(s);
    swx_pty_close(&s->pty);
    swx_buf_free(&s->output.kept);
    swx_buf_free(&s->input.pending);
    s->input.written = 0;
    swx_session_finish_list(s, &s->close.first, SWX_END_DONE, 0);
}

void swx_close_begin(swx_session *s, int64_t now)
{
    swx_session_finish_all(s, SWX_END_CLOSED, 0);
    if (s->state == CLOSING || s->state == CLOSED) {
        return;
    }
    s->close.was_idle = s->state == IDLE && !s->input.half_line;
    s->close.step = now; /* a look at all processes is too slow for this thread */
    s->state = CLOSING;
    s->check = SWX_NEVER;
}

/* Requests the end of the shell, as a terminal that is closed does. */
static void hang_up(swx_session *s, int64_t now)
{
    pid_t group = swx_pty_foreground(&s->pty);
    swx_tree_kill_orphans(&s->child);
    if (swx_child_ended(&s->child)) {
        return;
    }
    if (s->transport->farewell && s->close.was_idle) { /* else the shell would outlive its client */
        swx_session_type_bytes(s, "\004", 1);
        s->close.step = s->close.limit = now + s->transport->farewell;
        return;
    }
    if (group > 0 && group != s->child.pid) {
        kill(-group, SIGHUP);
        kill(-group, SIGCONT);
    }
    swx_child_signal(&s->child, SIGHUP);
    swx_child_signal(&s->child, SIGCONT);
    s->close.step = now + CLOSE_LOOK;
    s->close.limit = now + (has_evidence(s) ? CLOSE_GRACE : 10 * CLOSE_LOOK);
}

/* Whether the shell may still be ending: it is not back at its prompt, or cannot be seen for want of a descriptor. */
static bool may_be_ending(swx_session *s)
{
    return s->close.sweeps < SHORT_SWEEPS && (swx_kernel_unpark(&s->kernel, s->child.pid, NULL) != SWX_OK ||
                                              swx_kernel_look(&s->kernel) > SWX_SHELL_READLINE);
}

void swx_close_step(swx_session *s, int64_t now)
{
    if (!s->close.begun) {
        s->close.begun = true;
        hang_up(s, now);
        if (s->close.step > now) {
            return;
        }
    }
    if (!swx_child_ended(&s->child) && now < s->close.limit && may_be_ending(s)) {
        s->close.step = now + CLOSE_LOOK;
        return;
    }
    if (s->close.sweeps == SHORT_SWEEPS) { /* a look at all processes takes one, and these may be the last */
        give_up_shell(s);
    }
    bool gone = swx_tree_kill(&s->child);
    s->close.sweeps++;
    if (gone || s->close.sweeps > CLOSE_SWEEPS) {
        close_finally(s);
    } else {
        s->close.step = now + (s->close.sweeps < SHORT_SWEEPS ? MS : 10 * MS);
    }
}
