/* Interrupts: SIGINT to the foreground, then SIGKILL. */
#include "swx_session_private.h"
#include "swx_proc.h"
#include "swx_tree.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

/* looks at a shell that starts programs all the time: enough to see one of them, even on a busy machine */
enum { FORK_LOOKS = 400 };
/* signals in one attempt: one to a child of a fast loop ends the loop in every second to fifth case */
enum { REPEATS = 64 };
enum { PROMPT_PROGRAMS = 4 }; /* that PROMPT_COMMAND may run one after the other, each for less than SHORT_GRACE */
static const char HELD_BY_SHELL[] =
    "the shell itself runs the command, and ignores or traps SIGINT, or repeats it without end. Close the "
    "session and create another one";
static const char HELD_BY_PROGRAM[] =
    "a program ignores SIGINT and cannot be killed: it belongs to another user, or waits for the kernel. End "
    "it yourself, or close the session";
/* an interrupt waits until the shell has read the command, as long as it reads at all */
static const int64_t ARRIVAL_LIMIT = 10000 * MS;
static const int64_t BUSY_GRACE = 20 * MS; /* for a shell that may be about to start a program */
static const int64_t BUSY_LOOK = MS / 2;
static const int64_t FORK_LIMIT = 2000 * MS;                      /* for one that does so all the time */
static const int64_t FIRST_LOOK = MS / 4, LONGEST_LOOK = 20 * MS; /* at what became of an interrupt */
static const int64_t REPEAT_LIMIT = 1000 * MS;                    /* extension of an attempt that has to signal again */
/* for a program of a loop that is being killed to die of SIGINT, which ends the loop */
static const int64_t SHORT_GRACE = 20 * MS;
static const int64_t HANG_UP_GRACE = 200 * MS; /* for a program that was hung up */
static const int64_t KILL_GRACE = 1000 * MS;

/* Whether the shell computes.  A shell whose system calls are hidden computes if it does not sleep. */
static bool computes(const swx_session *s)
{
    return has_evidence(s) ? swx_kernel_look(&s->kernel) == SWX_SHELL_COMPUTES : !swx_kernel_sleeps(s->child.pid);
}

/* Whether SIGINT must wait because the shell may be about to start a program. Bash 5.2 does not survive a SIGINT
 * between a builtin and the child of the next command: it returns to its prompt, then the child takes the terminal, and
 * the shell's next read fails with EIO, which ends it.
 *
 * So SIGINT waits while the shell computes, or waits for a child that has not taken the terminal yet. If the shell
 * starts programs, one of them will be seen in the foreground. If not, SIGINT goes out once the shell has computed for
 * a moment without starting any. The processor time of the shell and of its children measures that moment, not the
 * clock, because on a busy machine they may not have run; looks are counted for the same reason. A shell that reads is
 * past that point. */
static bool may_be_forking(const swx_session *s, swx_op *op, int64_t now)
{
    swx_shell_at at = swx_kernel_look(&s->kernel);
    bool reads = at >= SWX_SHELL_PROMPT && at <= SWX_SHELL_READS;
    bool over = now - op->since > FORK_LIMIT && op->looks > FORK_LOOKS;
    if (over || reads) {
        return false;
    }
    op->looks++;
    swx_kernel_pace pace = swx_kernel_pace_of(s->child.pid);
    if (!op->calm || pace.reaped != op->pace.reaped) {
        op->calm = now;
        op->pace = pace;
        return true;
    }
    if (computes(s)) {
        return pace.worked - op->pace.worked < BUSY_GRACE;
    }
    /* The last look notices a child that ended, and a next command that began, since the first one. */
    return now - op->calm < BUSY_GRACE || swx_kernel_has_newborn(s->child.pid) || computes(s) ||
           swx_kernel_pace_of(s->child.pid).reaped != pace.reaped;
}

/* The foreground group; if that is the shell waiting for the group that was interrupted, that group.  A child of bash
 * that dies of SIGINT before its exec hands the terminal back, while another child of the same pipeline may have
 * forgotten the SIGINT when it was forked. */
static pid_t in_front(const swx_session *s)
{
    pid_t group = swx_pty_foreground(&s->pty), interrupted = s->interrupt.group;
    if (group != s->child.pid || s->run.found.rank || !is_program(s, interrupted) || kill(-interrupted, 0) != 0) {
        return group;
    }
    pid_t leaders = getsid(interrupted); /* fails if the leader is gone; another session's if the number was reused */
    return leaders >= 0 && leaders != s->child.pid ? group : interrupted;
}

void swx_interrupt_note(swx_session *s, swx_op *op, pid_t group, int64_t now)
{
    s->interrupt.group = op->target = group;
    op->interrupted_at = now;
    op->look = FIRST_LOOK;
    op->calm = 0;
    op->missed = op->unborn = false;
    op->successors = 0;
}

bool swx_interrupt_left_newborn(swx_session *s)
{
    pid_t shell = s->child.pid;
    if (!s->interrupt.newborn && s->interrupt.group == shell) {
        pid_t front = swx_pty_foreground(&s->pty), youngest = swx_kernel_youngest_child(shell);
        s->interrupt.newborn = is_program(s, front) ? front : youngest ? getpgid(youngest) : 0;
    }
    return s->transport->has_processes && is_program(s, s->interrupt.newborn) &&
           getsid(s->interrupt.newborn) == shell && !swx_kernel_is_over(s->interrupt.newborn);
}

void swx_interrupt_end_newborn(swx_session *s, int64_t now)
{
    pid_t shell = s->child.pid, youngest = s->interrupt.newborn ? swx_kernel_youngest_child(shell) : 0;
    bool another =
        youngest && getpgid(youngest) != s->interrupt.newborn; /* the program of a trap, for which the shell waits */
    if (!s->interrupt.newborn || another || now - s->output.last_data < BUSY_GRACE || !swx_kernel_sleeps(shell)) {
        return;
    }
    if (getsid(s->interrupt.newborn) == shell) {
        kill(-s->interrupt.newborn, SIGINT);
    }
    if (!swx_shell_is_program_of(s, s->interrupt.newborn)) { /* else it forgets the signal when it becomes one */
        s->interrupt.newborn = 0;
    }
}

/* Kills the foreground group.  A single program is hung up first, so that it can let go of the terminal and of what it
 * edits; of several, some could print on when the shell is at its prompt.  That ends no loop of the shell, so the shell
 * or its next program is interrupted then. */
static void kill_foreground(swx_session *s, swx_op *op, pid_t group, int64_t now)
{
    const bool hangs_up = op->hung_up != group && !swx_kernel_has_company(group);
    swx_interrupt_note(s, op, group, now);
    op->missed = true;
    op->hung_up = group;
    kill(-group, hangs_up ? SIGHUP : SIGKILL);
    kill(-group, SIGCONT);
}

/* A shell that was stopped would not notice an interrupt, nor one that waits for stopped output. */
static void set_going(swx_session *s)
{
    swx_proc_stat stat;
    swx_pty_start_output(&s->pty);
    if (swx_proc_read_stat(s->child.pid, &stat) == SWX_OK && stat.state == 'T') {
        swx_child_signal(&s->child, SIGCONT);
    }
}

static bool has_unread_input(const swx_session *s) { return s->pty.slave >= 0 && !swx_pty_input_consumed(&s->pty); }

/* Frees a shell that SIGINT does not free: types an end of input to its `read`, or kills the processes that it waits
 * for.  Does nothing to a shell at its prompt. */
static void release_shell(swx_session *s, swx_op *op, int64_t now)
{
    swx_interrupt_note(s, op, s->child.pid, now);
    swx_shell_at at = swx_kernel_look(&s->kernel);
    bool reads = swx_tree_shell_reads(s->child.pid, s->pty.path);
    if (at == SWX_SHELL_PROMPT || at == SWX_SHELL_READLINE || (at == SWX_SHELL_READS && swx_shell_is_replaced(s))) {
        return;
    }
    if (reads) {
        /* Since that look SIGINT may have ended the read, and the shell may be at its prompt. */
        if ((at != SWX_SHELL_READS && at != SWX_SHELL_UNKNOWN) || swx_kernel_look(&s->kernel) != at) {
            return;
        }
        if (has_unread_input(s)) {
            return; /* the shell has not read the last end of input, and would read another one at its prompt */
        }
        uint8_t end = swx_pty_end_of_input(&s->pty);
        swx_session_type_bytes(s, &end, 1);
    } else {
        swx_tree_kill_begun(&s->child, s->facts.commenced, s->run.newest_before);
    }
}

static void begin_attempt(const swx_session *s, swx_op *op, int64_t length, int64_t now)
{
    op->since = now;
    op->looks = 0;
    op->length = length > MS ? length : MS; /* without a pause all attempts would be made at once */
    op->until = now + op->length;
    op->look = FIRST_LOOK;
    op->repeats = REPEATS;
    op->next = s->transport->has_processes ? earlier(op->until, now + op->look) : op->until;
}

/* Whether the groups that have come into the place of the interrupted one are the command's: one stays, or there are
 * many, as in a loop.  Else they may be PROMPT_COMMAND's, which the shell runs behind an interrupted command. */
static bool is_of_command(swx_op *op, pid_t group, int64_t now)
{
    if (group != op->successor) {
        op->successor = group;
        op->successor_since = now;
        op->successors++;
    }
    return op->successors > PROMPT_PROGRAMS || now - op->successor_since > SHORT_GRACE;
}

/* Looks at an attempt that is under way.  The interrupted program may have ended in that moment, or have been too young
 * to die of SIGINT; if the shell runs the next program already, that one is interrupted instead.  No program gets a
 * second SIGINT in one attempt. */
static void watch_attempt(swx_session *s, swx_op *op, pid_t group, int64_t now)
{
    /* look often: the next program may be a short one */
    bool gone = group != op->target && now - op->interrupted_at < REPEAT_LIMIT;
    bool another = is_program(s, group) && group != op->target;
    op->look = earlier(2 * op->look, gone ? BUSY_LOOK : LONGEST_LOOK);
    if (s->run.found.rank) {
        op->missed = false; /* the shell has shown its prompt */
    } else if (op->unborn && group == op->target && !swx_kernel_is_over(group) && !swx_shell_is_program_of(s, group)) {
        /* the leader was not yet a program, and forgot the signal at its exec; the other members did not */
        op->unborn = false;
        kill(group, SIGINT);
    } else if (another && !op->missed && !op->unborn && !is_of_command(op, group, now)) {
        op->next = now + BUSY_LOOK;
        return;
    } else if (another && op->repeats) {
        s->transport->interrupt(s, op, group, now);
        op->repeats -= !op->missed;
        /* as much time as the first program had */
        op->until = earlier(now + op->length, op->since + op->length + REPEAT_LIMIT);
    } else if (is_program(s, group) && op->killed &&
               now - op->interrupted_at > (group == op->hung_up ? HANG_UP_GRACE : SHORT_GRACE)) {
        kill_foreground(s, op, group, now);
    } else if (op->killed && op->target == s->child.pid && group == s->child.pid &&
               now - op->interrupted_at > SHORT_GRACE) {
        release_shell(s, op, now);
    } else if (!is_program(s, group) && op->missed && swx_kernel_look(&s->kernel) != SWX_SHELL_PROMPT &&
               !may_be_forking(s, op, now)) {
        s->transport->interrupt(s, op, group, now);
    }
    if (gone && !s->run.found.rank && op->until - now < BUSY_GRACE &&
        may_be_forking(s, op, now)) { /* another program will come */
        op->until = earlier(now + BUSY_GRACE, op->since + op->length + REPEAT_LIMIT);
    }
    op->next = earlier(op->until, now + op->look);
}

/* Begins an attempt, or looks at the present one.  False: nothing is left to try. */
static bool interrupt_once(swx_session *s, swx_op *op, int64_t now)
{
    if (op->silent && !s->transport->has_processes) {
        s->run.interrupted_at = now;
        s->shell.modes_may_differ = true;
        op->next = SWX_NEVER;
        return true;
    }
    if (swx_completion_shows_prompt(s, now)) { /* the command has ended */
        op->next = now + MS;
        return true;
    }
    if (op->until <= now && s->transport->has_processes) {
        set_going(s);
    }
    bool arriving = !typed_all(s) || !s->run.begun;
    bool unread = has_unread_input(s) && now - op->since < FORK_LIMIT; /* the shell is about to begin the command */
    if (s->input.arriving || (arriving && (unread || now - s->run.delivered < s->transport->delivery))) {
        op->next = now + 2 * MS; /* the rest of a half-read command would run as a command of its own */
        return !s->input.arriving || now - op->since < ARRIVAL_LIMIT;
    }
    if (now - s->run.delivered < s->transport->fork) {
        op->next = s->run.delivered + s->transport->fork;
        return true;
    }
    pid_t group = in_front(s);
    if (op->until > now) {
        watch_attempt(s, op, group, now);
        return true;
    }
    if (op->until) { /* the next one begins */
        op->since = now;
        op->looks = 0;
        op->until = op->calm = 0;
    }
    bool last = !op->tries && (!s->transport->has_processes || op->killed);
    if (!last && s->transport->has_processes && !is_program(s, group) && may_be_forking(s, op, now)) {
        op->next = now + BUSY_LOOK;
        return true;
    }
    if (op->tries) {
        op->tries--;
        s->transport->interrupt(s, op, group, now);
        begin_attempt(s, op, op->step, now);
        return true;
    }
    if (!s->transport->has_processes) {
        return false; /* the owner has other ways to what runs there */
    }
    if (!op->killed) {
        op->killed = true;
        if (is_program(s, group)) {
            kill_foreground(s, op, group, now);
        } else {
            s->transport->interrupt(s, op, group, now);
            release_shell(s, op, now);
        }
        begin_attempt(s, op, op->step > KILL_GRACE ? op->step : KILL_GRACE, now);
        return true;
    }
    op->error = (swx_error){ .status = SWX_EBUSY, .text = group == s->child.pid ? HELD_BY_SHELL : HELD_BY_PROGRAM };
    return false;
}

/* How long an interrupt waits for the answer to a question: as long as for its attempts, this one included. */
static int64_t question_patience(const swx_op *op)
{
    return op->length + op->step * (op->tries < 8 ? op->tries : 8) + 2 * KILL_GRACE;
}

/* Whether the command to interrupt has not begun, because its syntax is still being checked, perhaps by the shell. */
static bool is_being_checked(const swx_session *s, int64_t now)
{
    if (s->state == RUNNING) {
        return s->current && s->current->ahead && now - s->facts.commenced < KILL_GRACE;
    }
    return s->state == IDLE && s->queue.first && (s->queue.first->held || s->queue.first->ahead);
}

void swx_interrupt_step(swx_session *s, int64_t now)
{
    if (s->state == IDLE && !is_being_checked(s, now)) {
        swx_session_finish_list(s, &s->interrupt.first, SWX_END_DONE, 0);
    }
    for (swx_op **at = &s->interrupt.first; *at;) {
        swx_op *op = *at;
        if (op->next <= now && (s->state == RESYNC || s->state == STARTING)) {
            /* the command has ended, and the shell is being asked how; a shell that starts would die of SIGINT */
            op->next = now + 5 * MS;
        }
        if (op->next <= now && is_being_checked(s, now)) {
            op->since = now;
            op->next = now + MS;
        }
        bool tries = op->next > now || interrupt_once(s, op, now);
        if (s->state == RESYNC && !s->resync.answered && now - op->since > question_patience(op)) {
            tries = false; /* no answer: a question gets less time than a command */
        }
        if (s->state == LOST) {
            return; /* all have ended */
        }
        if (!tries) {
            swx_session_finish(s, swx_session_pop(at), SWX_END_TIMEOUT, 0);
        } else {
            at = &op->link;
        }
    }
}
