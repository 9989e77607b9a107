/* Evidence that the shell is at its prompt: the kernel, the terminal, silence. */
#include "swx_session_private.h"
#include "swx_tree.h"

#include <stdio.h>

/* no shell forks in less: a fork is 60 to 400 us of its own */
static const int64_t FORK_TIME = MS / 10, FORK_WORK = MS / 25;
/* a longer command may have brought back an earlier job without a fork */
static const int64_t READER_AHEAD_AFTER = 20 * MS;
/* for a killed process to leave its read of the terminal */
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
    return program.st_ino && program.st_ino == s->shell.program.st_ino && program.st_dev == s->shell.program.st_dev;
}

void swx_shell_remember(swx_session *s)
{
    s->shell.program = program_of(s->child.pid);
    s->shell.stack = swx_kernel_stack_of(s->child.pid);
}

bool swx_shell_is_replaced(const swx_session *s)
{
    uint64_t stack = s->shell.stack ? swx_kernel_stack_of(s->child.pid) : 0;
    return stack && stack != s->shell.stack;
}

/* ---- is the shell at its prompt? ---- */

bool swx_evidence_is_silent(const swx_session *s, int64_t now)
{
    return now - s->output.last_data > s->transport->silence;
}

/* Whether a shell whose system calls are hidden is seen not to wait for its terminal's input: it computes, or another
 * group is in the foreground.  A mark that comes then was not printed by a shell at its prompt. */
static bool is_seen_elsewhere(swx_session *s)
{
    return s->transport->has_processes && (swx_pty_foreground(&s->pty) != s->child.pid ||
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
            s->run.readline_seen = true;
            return AT_PROMPT;
        case SWX_SHELL_UNKNOWN: /* a prompt in raw mode is taken for readline's; if a program has left that mode, no
                                   harm is done */
            if (!has_evidence(s) && is_seen_elsewhere(s)) {
                break;
            }
            s->run.readline_seen = s->run.readline_seen || (s->run.found.rank && s->state == RUNNING &&
                                                            !s->input.arriving && !swx_pty_is_canonical(&s->pty));
            return NO_EVIDENCE;
        default: break;
        }
    }
    return NOT_YET;
}

/* Tells a shell that waits for input from one that is between two parts of a long text, where no mark says that all was
 * read.  A worker of the kernel moves the text to the terminal, as much as there is room for.  A shell that has read
 * all of that wakes the worker and sleeps in its read meanwhile, but in state D, not S.  If the shell's processor time
 * has not changed between two looks, it was in the same sleep all the time. */
bool swx_evidence_waits_for_input(const swx_session *s)
{
    int64_t worked = swx_kernel_worked(s->child.pid);
    bool reads = swx_kernel_look(&s->kernel) <= SWX_SHELL_READLINE && swx_kernel_sleeps(s->child.pid);
    /* A shell in that sleep has woken the worker if there is more to move, and this call waits for the worker. */
    return reads && swx_pty_input_consumed(&s->pty) && swx_kernel_worked(s->child.pid) == worked;
}

/* Bytes written before the shell came to its prompt are in the kernel's buffers, which a read that finds nothing has
 * flushed. */
bool swx_evidence_drained(swx_session *s, int64_t now)
{
    bool more = true;
    state was = s->state;
    resync_phase phase = s->resync.phase;
    for (unsigned round = 0; more && round < 16; round++) {
        more = swx_output_read(s, true, now);
    }
    return !more && s->state == was && s->resync.phase == phase;
}

/* ---- another reader of the terminal ---- */

/* Whether the shell may have started a process since the terminal was last known to be its own.  It has not if no
 * process was started on the machine, or if the shell has used less processor time than a fork takes.  Elapsed time
 * alone is no measure: with many sessions at once each command takes longer than a fork.  Each false starts the
 * measurement anew. */
static bool may_have_left(swx_session *s, int64_t now)
{
    if (s->interrupt.group > 0 || s->run.found.code > 128 || now - s->run.delivered > READER_AHEAD_AFTER) {
        return true;
    }
    if (now - s->run.delivered < FORK_TIME) {
        return false;
    }
    int64_t last = swx_kernel_last_start();
    if (last >= 0 && last == s->shell.last_start && !s->shell.jobs) { /* with jobs, one may have been brought back */
        return false;
    }
    int64_t worked = swx_kernel_worked(s->child.pid);
    if (worked < 0 || worked - s->shell.worked > FORK_WORK) {
        return true;
    }
    s->shell.worked = worked;
    s->shell.last_start = last;
    return false;
}

/* A process that outlived the command, such as a pager, may be in a read of the terminal that it began in the
 * foreground.  It would take the next command or a question, or only the first letter.  So this is asked before either
 * is typed, and only if a process may have been started, because a look costs a short command a tenth. */
bool swx_evidence_is_reader_ahead(swx_session *s, where at, int64_t now)
{
    if (!s->transport->has_processes || !may_have_left(s, now)) {
        return false;
    }
    int64_t last = swx_kernel_last_start(); /* before the look, so that later starts count */
    bool proved = at == AT_PROMPT, tells = proved || !has_evidence(s);
    swx_kernel_reader reader = tells ? swx_kernel_reader_of(s->child.pid) : SWX_READER_UNKNOWN;
    if (reader == SWX_READER_UNKNOWN && s->interrupt.group > 0 && s->interrupt.group != s->child.pid) {
        swx_tree_kill_readers(&s->child, s->interrupt.group, s->pty.path);
        s->interrupt.group = 0;
    }
    if (tells && !proved && reader == SWX_READER_UNKNOWN && is_seen_elsewhere(s)) { /* the shell has just woken up */
        swx_session_check_in(s, now, MS / 5);
        return true;
    }
    if (reader != SWX_READER_OTHER) {
        s->shell.worked = swx_kernel_worked(s->child.pid);
        s->shell.last_start = last;
        s->shell.reader_ahead = 0;
        return false;
    }
    s->shell.reader_ahead = s->shell.reader_ahead ? s->shell.reader_ahead : now;
    if (now - s->shell.reader_ahead > READER_AHEAD_LIMIT) {
        swx_session_lose(s); /* it cannot be ended, and would take an unknown part of what is typed */
    } else if (proved) {
        swx_tree_kill_readers(&s->child, 0, s->pty.path);
        swx_session_check_in(s, now, MS / 5);
    } else { /* the kernel does not tell which process: an empty line ends its read, and does the shell no harm */
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
    return now - s->output.last_data > UNHEARD && now - s->run.delivered > UNHEARD && typed_all(s) &&
           swx_pty_input_consumed(&s->pty) && swx_pty_foreground(&s->pty) == s->child.pid &&
           swx_kernel_may_await_input(&s->kernel, s->child.pid, alone && !has_evidence(s));
}
