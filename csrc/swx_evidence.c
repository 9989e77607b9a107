/* What tells that the shell is at its prompt: the kernel, its terminal, silence. */
#include "swx_session_private.h"
#include "swx_tree.h"

#include <stdio.h>

/* after it nothing more is on its way, near and far */
static const int64_t SILENCE = 20 * MS, CARRIED_SILENCE = 2000 * MS;
/* no shell forks in less: a fork is 60 to 400 us of its own */
static const int64_t FORK_TIME = MS / 10, FORK_WORK = MS / 25;
/* so long a command may have brought back a job of before without a fork */
static const int64_t READER_AHEAD_AFTER = 20 * MS;
/* for a read ahead of the shell's to end when its process is killed */
static const int64_t READER_AHEAD_LIMIT = 2000 * MS;

/* ---- the shell's program ---- */

static struct stat program_of(pid_t pid)
{
    char path[48];
    struct stat program;
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    return stat(path, &program) == 0 ? program : (struct stat){ 0 };
}

bool swx_shell_is_program_of(const swx_session *s, pid_t pid)
{
    struct stat program = program_of(pid);
    return program.st_ino && program.st_ino == s->program.st_ino && program.st_dev == s->program.st_dev;
}

void swx_shell_remember(swx_session *s)
{
    s->program = program_of(s->child.pid);
    s->stack = swx_kernel_stack_of(s->child.pid);
}

bool swx_shell_is_replaced(const swx_session *s)
{
    uint64_t stack = s->stack ? swx_kernel_stack_of(s->child.pid) : 0;
    return stack && stack != s->stack;
}

/* ---- is the shell at its prompt? ---- */

bool swx_evidence_is_silent(const swx_session *s, int64_t now)
{
    return now - s->last_data > (s->pty.carrier ? CARRIED_SILENCE : SILENCE);
}

/* Where the kernel does not tell of system calls: what the shell does that is no wait for input at its own terminal, as
 * running something in the foreground, or computing.  Who prints a mark then is not the shell at its prompt. */
static bool is_seen_elsewhere(swx_session *s)
{
    return !s->pty.carrier && (swx_pty_foreground(&s->pty) != s->child.pid ||
                               !swx_kernel_may_await_input(&s->kernel, s->child.pid, false));
}

where swx_evidence_look(swx_session *s, unsigned looks)
{
    if (!typed_all(s) || !swx_pty_input_consumed(&s->pty)) {
        return NOT_YET;
    }
    for (unsigned i = 0; i < looks; i++) {
        switch (swx_kernel_look(&s->kernel)) {
        case SWX_SHELL_PROMPT: return AT_PROMPT;
        case SWX_SHELL_READLINE:
            if (swx_pty_foreground(&s->pty) != s->child.pid) {
                return NOT_YET;
            }
            s->readline_seen = true;
            return AT_PROMPT;
        case SWX_SHELL_UNKNOWN: /* readline's prompt is one in raw mode; a program may have left that too, and no harm
                                   is done */
            if (!has_evidence(s) && is_seen_elsewhere(s)) {
                break;
            }
            s->readline_seen = s->readline_seen ||
                               (s->found.rank && s->state == RUNNING && !s->arriving && !swx_pty_is_canonical(&s->pty));
            return NO_EVIDENCE;
        default: break;
        }
    }
    return NOT_YET;
}

/* To be asked when the shell was seen in its read with nothing to read, and no mark says that it has read what was
 * typed: more of that may be on its way.  The kernel's worker brings as much of a long text as there is room for; the
 * shell that has taken the last of that puts it to work again, and until it has done that the shell is asleep in its
 * read too, but in the kernel's business (D) and not in the wait for input (S).  One that has not worked meanwhile was
 * in the same sleep all the time. */
bool swx_evidence_waits_for_input(const swx_session *s)
{
    int64_t worked = swx_kernel_worked(s->child.pid);
    bool reads = swx_kernel_look(&s->kernel) <= SWX_SHELL_READLINE && swx_kernel_sleeps(s->child.pid);
    /* In that sleep it has put the worker to work already, if there is more to bring, and this waits for the worker. */
    return reads && swx_pty_input_consumed(&s->pty) && swx_kernel_worked(s->child.pid) == worked;
}

/* What was written before the shell came to its prompt is in the buffers of the kernel, and a read that finds nothing
 * has flushed them. */
bool swx_evidence_drained(swx_session *s, int64_t now)
{
    bool more = true;
    state was = s->state;
    resync_phase phase = s->phase;
    for (unsigned round = 0; more && round < 16; round++) {
        more = swx_output_read(s, true, now);
    }
    return !more && s->state == was && s->phase == phase;
}

/* ---- another reader of the terminal ---- */

/* Whether the shell may have started something since its terminal was last known to be its own.  Not where nobody has
 * started anything, nor where it has not worked enough for a fork: with many sessions at once a command takes longer
 * than one, and the shell may work as long.  From there on the next command counts, and not many together. */
static bool may_have_left(swx_session *s, int64_t now)
{
    if (s->stopped > 0 || s->found.code > 128 || now - s->delivered > READER_AHEAD_AFTER) {
        return true;
    }
    if (now - s->delivered < FORK_TIME) {
        return false;
    }
    int64_t last = swx_kernel_last_start();
    if (last >= 0 && last == s->last_start && !s->jobs) { /* a job may be brought back */
        return false;
    }
    int64_t worked = swx_kernel_worked(s->child.pid);
    if (worked < 0 || worked - s->worked > FORK_WORK) {
        return true;
    }
    s->worked = worked;
    s->last_start = last;
    return false;
}

/* Something that the command left behind, as a pager that outlived the program that opened it, may be in a read of the
 * terminal that began in the foreground.  It would take the next command or our question, or, worse, their first
 * letter.  Asked before either is typed, and only where it may be: a look costs a short command a tenth. */
bool swx_evidence_is_reader_ahead(swx_session *s, where at, int64_t now)
{
    if (s->pty.carrier || !may_have_left(s, now)) {
        return false;
    }
    int64_t last = swx_kernel_last_start(); /* before the look: what is started after it counts */
    bool proved = at == AT_PROMPT, tells = proved || !has_evidence(s);
    swx_kernel_turn turn = tells ? swx_kernel_turn_of(s->child.pid) : SWX_TURN_UNKNOWN;
    if (turn == SWX_TURN_UNKNOWN && s->stopped > 0 && s->stopped != s->child.pid) {
        swx_tree_kill_readers(&s->child, s->stopped, s->pty.path);
        s->stopped = 0;
    }
    if (tells && !proved && turn == SWX_TURN_UNKNOWN && is_seen_elsewhere(s)) { /* it has just woken up */
        swx_session_check_in(s, now, MS / 5);
        return true;
    }
    if (turn != SWX_TURN_OTHERS) {
        s->worked = swx_kernel_worked(s->child.pid);
        s->last_start = last;
        s->reader_ahead = 0;
        return false;
    }
    s->reader_ahead = s->reader_ahead ? s->reader_ahead : now;
    if (now - s->reader_ahead > READER_AHEAD_LIMIT) {
        swx_session_lose(s); /* it cannot be ended: nobody knows what would reach the shell */
    } else if (proved) {
        swx_tree_kill_readers(&s->child, 0, s->pty.path);
        swx_session_check_in(s, now, MS / 5);
    } else { /* the kernel does not tell which one: it is given an empty line, to which the shell would but show its
                prompt */
        swx_completion_apply_modes(s);
        if (swx_session_type_bytes(s, "\n", 1)) {
            swx_session_check_in(s, now, MS);
        } else {
            swx_session_lose(s);
        }
    }
    return true;
}

bool swx_evidence_is_still(swx_session *s, int64_t now, bool alone)
{
    return now - s->last_data > UNHEARD && now - s->delivered > UNHEARD && typed_all(s) &&
           swx_pty_input_consumed(&s->pty) && swx_pty_foreground(&s->pty) == s->child.pid &&
           swx_kernel_may_await_input(&s->kernel, s->child.pid, alone && !has_evidence(s));
}
