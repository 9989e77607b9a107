/* Decides whether the command has ended, and how: by marks and the kernel, else by a question to the shell. */
#include "swx_session_private.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "swx_job_notice.h"
#include "swx_proc.h"

enum { NOTICE_LIMIT = 16 << 20 }; /* bytes of output that are searched for job notices, which takes some milliseconds */
enum { SYNC_NEWLINES = 8 };       /* empty lines typed for programs that may read the terminal ahead of the shell */
static const int64_t HELPER_LIMIT = 1000 * MS; /* for the reader of the shell's output to begin, if it ever does */
static const int64_t HELPER_END = 3000 * MS;   /* for the whole output, because others may print without end */
static const int64_t LEARN_LIMIT = 2000 * MS;  /* for a shell that showed its prompt to go to its read */
/* for the second prompt, of a ^C that came when the command had just ended */
static const int64_t STRIKE_GRACE = 10 * MS;
static const int64_t SYNC_GRACE = 250 * MS;    /* for the shell to answer an empty line, before another one is typed */
static const int64_t START_GRACE = 20 * MS;    /* for a START mark, once the command was read */
static const int64_t PROMPT_LIMIT = 1000 * MS; /* for a prompt that shows behind its mark, on a machine that is busy */
static const int64_t START_WORK = 20 * MS;     /* of the shell's own, for the same */

void swx_completion_apply_modes(swx_session *s)
{
    if (!s->run.readline_seen) { /* else readline's, which takes them back itself */
        s->run.processed = swx_pty_apply_modes(&s->pty, s->run.hints & SWX_SCAN_STTY) || s->run.processed;
    }
}

void swx_completion_take_held(swx_session *s)
{
    size_t size = s->marks.held_size;
    s->marks.held_size = 0;
    swx_output_take_plain(s, s->marks.held, size);
}

/* Expects the prompt of an empty line that is typed after the command. */
static void await_another_prompt(swx_session *s)
{
    s->shell.number = s->run.found.number ? s->run.found.number : s->shell.number;
    s->run.found = (candidate){ 0 };
    s->run.started = false;
}

/* ---- job notices, and what prompts of the user's print ---- */

/* Keeps the part that a reader has taken already (swx_session_take). */
void swx_completion_remove_notices(swx_session *s)
{
    size_t size = s->output.kept.size, taken = s->current ? (size_t)s->current->taken : 0;
    taken = taken < size ? taken : size;
    swx_buf_chop(&s->output.kept, size - taken - swx_job_notice_remove(s->output.kept.data + taken, size - taken));
}

bool swx_completion_asks_about_notices(const swx_session *s)
{
    return (s->shell.jobs || s->shell.owed) && !(s->run.hints & SWX_SCAN_JOBS) && s->output.kept.size <= NOTICE_LIMIT &&
           !swx_buf_dropped(&s->output.kept);
}

/* Bash reports ended jobs in the output of whatever runs when it notices, mostly right before its prompt.  Where lines
 * look like that, a job of an earlier command is known, and this command has no business with jobs, an empty line asks
 * for one more prompt: only if that many jobs less are left than before the command were the lines bash's own.
 * True: wait for that prompt. */
static bool asks_about_notices(swx_session *s, const candidate *found)
{
    if (s->run.notices) { /* that prompt is here */
        swx_buf_chop(&s->output.kept, (size_t)(s->output.kept.total - s->run.notice_end));
        if (s->shell.jobs + s->shell.owed >= found->jobs + s->run.notices) {
            swx_completion_remove_notices(s);
        }
        s->run.notices = 0;
        return false;
    }
    if (!swx_completion_asks_about_notices(s)) {
        return false;
    }
    s->run.notices = swx_job_notice_count(s->output.kept.data, s->output.kept.size, s->shell.jobs + s->shell.owed);
    s->run.notice_end = s->output.kept.total;
    if (s->run.notices) {
        swx_completion_apply_modes(s);
    }
    if (!s->run.notices || !swx_session_drop_input(s) || !swx_session_type_bytes(s, "\n", 1)) {
        s->run.notices = 0;
        return false;
    }
    await_another_prompt(s);
    return true;
}

static bool starts_with(const swx_buf *buf, size_t at, const swx_buf *start)
{
    return start->size && buf->size - at >= start->size && memcmp(buf->data + at, start->data, start->size) == 0;
}

/* Whether bash may report jobs while it reads the command.  A guard does not tell their number. */
static bool may_start_with_notices(const swx_session *s)
{
    return s->shell.guard || swx_completion_asks_about_notices(s);
}

/* The size of the notices at this place of the output. */
static size_t notices_at(const swx_session *s, size_t at)
{
    return s->output.kept.size && may_start_with_notices(s)
               ? swx_job_notice_lead(s->output.kept.data + at, s->output.kept.size - at)
               : 0;
}

/* To be called once for a command, when enough of its output is there. */
size_t swx_completion_drop_start(swx_session *s)
{
    if (s->run.start_dropped || swx_buf_dropped(&s->output.kept)) {
        return 0;
    }
    s->run.start_dropped = true;
    uint8_t *data = s->output.kept.data;
    size_t from = 0, kept = 0, notices = notices_at(s, 0);
    for (unsigned line = 1; line <= s->run.lines && s->output.kept.size; line++) {
        const swx_buf *text = &s->answer.parts[line < s->run.lines ? PART_PS2 : PART_PS0];
        if (starts_with(&s->output.kept, from + notices, text)) {
            memmove(data + kept, data + from, notices);
            kept += notices;
            from += notices + text->size;
            notices = notices_at(s, from);
        }
    }
    size_t dropped = from - kept;
    if (dropped) {
        memmove(data + kept, data + from, s->output.kept.size - from);
        swx_buf_chop(&s->output.kept, dropped);
        uint64_t *taken = s->current && !s->current->matched ? &s->current->taken : NULL;
        uint64_t *const offsets[] = { &s->run.found.at, &s->run.before.at, &s->run.notice_end, taken };
        for (size_t i = 0; i < SWX_COUNT(offsets); i++) {
            if (offsets[i]) {
                *offsets[i] -= *offsets[i] < dropped ? *offsets[i] : dropped;
            }
        }
        for (swx_op *op = s->interrupt.first; op; op = op->link) {
            op->base -= op->base < dropped ? op->base : dropped;
        }
    }
    return dropped;
}

bool swx_completion_holds_start(const swx_session *s)
{
    if (s->run.start_dropped) {
        return false;
    }
    size_t notices = notices_at(s, 0), rest = s->output.kept.size - notices;
    bool may_be_notice =
        may_start_with_notices(s) && rest && swx_job_notice_begin(s->output.kept.data + notices, rest) == 0;
    return s->state == RESYNC || may_be_notice ||
           rest < s->answer.parts[PART_PS0].size + s->run.lines * s->answer.parts[PART_PS2].size;
}

/* ---- the end of a command ---- */

/* Whether the shell's stdout or stderr is a pipe, as after `exec > >(tee log)`. */
static bool is_pipe(const swx_session *s, const char *name, char target[static 32])
{
    swx_proc_read_link(s->child.pid, name, target, 32);
    return strncmp(target, "pipe:", 5) == 0;
}

/* Whether such a pipe has unread bytes, or a child of the shell that reads from it is at work. */
static bool pipe_is_busy(const swx_session *s, const char *name)
{
    char path[48], pipe[32], input[32];
    int size = 0;
    if (!is_pipe(s, name, pipe)) {
        return false;
    }
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)s->child.pid, name);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ioctl(fd, FIONREAD, &size);
    swx_close(&fd);
    bool busy = size > 0;
    FILE *children = swx_proc_children(s->child.pid, s->child.pid);
    for (pid_t child; (child = swx_proc_next_child(&children));) {
        swx_proc_read_link(child, "fd/0", input, sizeof(input));
        busy = busy || (strcmp(input, pipe) == 0 && !swx_kernel_sleeps(child));
    }
    return busy;
}

bool swx_completion_start_may_be_late(swx_session *s)
{
    char target[32];
    if (!s->transport->has_processes) {
        return false;
    }
    /* the command may have redirected it just now, so what was seen at a prompt counts more */
    s->shell.helper = s->shell.helper || is_pipe(s, "fd/2", target);
    return s->shell.helper;
}

/* Whether the reader of the shell's output, such as tee, may still print.  It gets time to read, then a moment to
 * write, which cannot be seen if another process does that. */
static bool helper_is_behind(swx_session *s, int64_t now)
{
    int64_t quiet = now - s->output.last_data;
    s->run.helper_until = s->run.helper_until ? s->run.helper_until : now + HELPER_END;
    bool busy =
        s->transport->has_processes && quiet < HELPER_LIMIT && (pipe_is_busy(s, "fd/1") || pipe_is_busy(s, "fd/2"));
    s->shell.helper_busy = busy ? now : s->shell.helper_busy;
    return now < s->run.helper_until &&
           (quiet < CALM || now - s->shell.helper_busy < 4 * CALM); /* it was slow just now */
}

void swx_completion_conclude(swx_session *s, int code, uint32_t jobs, const char *unread, int64_t now)
{
    swx_completion_drop_start(s);
    swx_resync_drop_own(s);
    s->interrupt.group = s->interrupt.newborn = 0;
    swx_completion_apply_modes(s);
    bool processed = s->run.processed;
    s->run.processed = false;
    const bool hidden = s->shell.guard || s->answer.report.no_stderr; /* no mark comes through the pipe */
    if ((s->run.hints & SWX_HINT_SETTLE) || (hidden && s->transport->has_processes)) {
        /* of a shell elsewhere the descriptors are not known; there the hint says so by itself */
        char target[32];
        s->shell.helper = !s->transport->has_processes || is_pipe(s, "fd/1", target) || is_pipe(s, "fd/2", target);
    }
    s->shell.owed = s->run.hints & SWX_SCAN_BACKGROUND ? s->shell.jobs
                    : s->shell.jobs > jobs             ? s->shell.jobs - jobs
                                                       : 0;
    s->shell.jobs = jobs;
    s->shell.code = code;
    swx_session_become_idle(s, now);
    s->check = SWX_NEVER;
    s->facts.commands += !s->resync.arms_prompt;
    swx_op *op = s->current;
    bool arms = s->resync.arms_prompt, asked = arms || (op && op->ahead);
    s->resync.arms_prompt = false;
    unread = op ? unread : NULL;
    if ((op = swx_session_claimant(s))) {
        op->processed = processed;
    }
    if (unread) {
        op->error = (swx_error){ .status = SWX_EINVAL, .text = unread };
    }
    if (!arms) {
        swx_session_finish_claimant(s, unread ? SWX_END_SYSTEM : SWX_END_DONE, code);
    }
    if (!asked) { /* else they are for the command that waits */
        swx_session_finish_list(s, &s->interrupt.first, SWX_END_DONE, code);
    }
    swx_session_begin(s, now);
}

/* Whether to ask for the modes of a terminal that is not ours, or for a nonce that others cannot read. */
static bool asks_about_terminal(const swx_session *s, const candidate *found)
{
    bool modes = (s->run.hints & SWX_SCAN_STTY) || s->shell.modes_may_differ || found->code > 128;
    return s->shell.nonce_is_exposed || (!s->transport->has_terminal && modes && !s->shell.adds_cr);
}

/* Types an empty line, which the shell answers with a prompt.  A program that survived an interrupt may still be in a
 * read of the terminal that it began in the foreground; it takes the empty line instead of the next command. */
static void type_empty_line(swx_session *s, int64_t now)
{
    s->run.sync_newline_at = now;
    s->run.sync_newlines++;
    if (!swx_session_type_bytes(s, "\n", 1)) {
        swx_session_lose(s);
        return;
    }
    swx_session_check_from(s, now, FIRST_CHECK);
}

/* Whether it is still to be proved, by an empty line, that the shell reads the terminal. */
static bool waits_for_sync_newline(swx_session *s, candidate *found, int64_t now)
{
    if (!s->run.interrupted_at) {
        return false;
    }
    if (s->run.sync_newline_at) {
        found->conflict = found->conflict || s->run.before.conflict || found->code != s->run.before.code;
        found->altered = found->altered || s->run.before.altered;
        found->rank = s->run.before.rank;
        found->at = s->run.before.at;
        return false;
    }
    s->run.before = *found;
    await_another_prompt(s);
    s->run.sync_newlines = 0;
    type_empty_line(s, now);
    return true;
}

static void conclude_from_mark(swx_session *s, int64_t now)
{
    candidate found = s->run.found;
    if (waits_for_sync_newline(s, &found, now)) {
        return;
    }
    /* PS1 may hold a mark that was expanded earlier.  Behind a guard only the shell can tell where stderr is, and
     * without START marks what PS0 and PS2 print. */
    bool own = ((s->run.hints & SWX_HINT_PROMPT) && !s->run.numbers_may_skip) ||
               (s->shell.guard && (s->run.hints & SWX_SCAN_EXEC)) ||
               (!s->shell.start_marks && (s->run.hints & SWX_HINT_SOURCE));
    /* The prompt came, nothing has run, and the shell printed no reason, as it does when history expansion fails. */
    bool idle = found.rank == 1 && s->current && s->current->runs && !s->run.begun &&
                swx_job_notice_lead(s->output.kept.data, s->output.kept.size) == s->output.kept.size;
    if (found.conflict || found.altered || s->shell.input_moved || found.code < 0 || s->run.number_too_high || own ||
        idle || s->run.replied || asks_about_terminal(s, &found)) {
        swx_buf_chop(&s->output.kept, s->shell.input_moved ? 0 : (size_t)(s->output.kept.total - found.at));
        swx_resync_begin(s, now, MARK_IN_DOUBT);
        return;
    }
    bool missed_start = !s->run.begun && found.number > s->shell.number;
    s->run.start_dropped = s->run.start_dropped && !missed_start;
    if (!s->shell.helper) { /* a helper's output comes after the prompt */
        swx_buf_chop(&s->output.kept, (size_t)(s->output.kept.total - found.at));
    }
    s->shell.number = found.number ? found.number : s->shell.number;
    s->shell.lost_prompts = 0;
    /* after two misses the session does without START marks, and removes the text that PS0 prints */
    s->shell.start_misses += missed_start;
    if (missed_start || s->run.readline_seen) {
        swx_resync_begin(s, now, MARK_IN_DOUBT);
        return;
    }
    s->shell.start_misses = s->run.begun ? 0 : s->shell.start_misses;
    if (asks_about_notices(s, &found)) {
        swx_session_check_in(s, now, s->backoff);
        return;
    }
    swx_completion_conclude(s, found.code, found.jobs, NULL, now);
}

void swx_completion_look_again(swx_session *s, int64_t now)
{
    swx_session_check_in(s, now, s->backoff);
    s->backoff = earlier(s->backoff * 2, LONGEST_CHECK);
}

/* ---- looks at the shell ---- */

/* Whether the shell has read the whole command and gone on: it waits, or has computed for longer than parsing takes.
 * Elapsed time alone proves nothing, because on a busy machine the shell may not have run. */
static bool is_past_start(swx_session *s, int64_t now)
{
    if (now - s->run.delivered <= START_GRACE || !typed_all(s) || !swx_pty_input_consumed(&s->pty)) {
        return false;
    }
    int64_t worked = swx_kernel_worked(s->child.pid);
    bool first = !s->run.worked_when_still;
    s->run.worked_when_still = first ? worked : s->run.worked_when_still;
    return !first && (worked < 0 || worked - s->run.worked_when_still > START_WORK || swx_kernel_sleeps(s->child.pid));
}

/* Begins a command that was read and runs without a START mark, because PS0 was changed.  All that has arrived so far
 * is taken for its output. */
static void begin_without_mark(swx_session *s)
{
    s->run.begun = true;
    s->run.expects_start = false;
    swx_op *op = swx_output_matching(s);
    if (!op) {
        return;
    }
    swx_buf so_far = s->output.kept;
    op->base = 0;
    swx_span spans[3];
    swx_buf_init(&s->output.kept, so_far.limit);
    swx_buf_spans(&so_far, spans);
    for (size_t i = 0; i < SWX_COUNT(spans); i++) {
        swx_output_take_output(s, spans[i].bytes, spans[i].size);
    }
    if (swx_output_matching(s) == op && s->output.kept.size == so_far.size) {
        s->output.kept.total += swx_buf_dropped(&so_far); /* head and tail are where they were */
    }
    swx_buf_free(&so_far);
}

/* Whether a prompt came too early to decide.  A ^C typed to a stream may find the command ended; then the shell
 * shows a second prompt, after this command's or before the next command's START mark. */
static bool is_early(const swx_session *s, int64_t now)
{
    bool unread = s->run.found.rank == 1 && s->current && s->current->runs && !s->run.begun;
    return (s->run.interrupted_at && now - s->run.interrupted_at < STRIKE_GRACE) ||
           (unread && now - s->run.delivered < s->transport->unread);
}

/* A readonly prompt comes after the guard's mark, and must not become output of the next command. */
bool swx_completion_shows_prompt(const swx_session *s, int64_t now)
{
    bool missing = s->output.kept.total - s->run.found.at < s->answer.parts[PART_PS1].size;
    return s->shell.prompt_follows_guard && s->run.found.rank &&
           now - s->output.last_data < (missing ? PROMPT_LIMIT : CALM);
}

/* Whether another shell has replaced ours (`exec bash`, `exec zsh`) and waits at a prompt of its own, which has no
 * marks of ours.  A bash is asked; with another shell the session is lost.  A bash at its prompt waits in readline or
 * reads as ours does; any other wait may be a `read`.  A shell that was given a command to run is not at a prompt. */
static bool meets_another_shell(swx_session *s, int64_t now)
{
    if (!s->transport->has_processes || !s->run.begun || now - s->output.last_data <= UNHEARD ||
        !swx_shell_is_replaced(s) || !swx_evidence_is_still(s, now, true)) {
        return false;
    }
    swx_shell_kind kind = swx_kernel_shell_of(s->child.pid);
    bool prompt = !swx_pty_is_canonical(&s->pty) || swx_kernel_reads_as_prompt(&s->kernel);
    if (kind == SWX_NO_SHELL || (kind == SWX_BASH && !prompt) || !swx_evidence_drained(s, now)) {
        return false;
    }
    if (kind == SWX_BASH) {
        s->run.readline_seen = true;
        s->kernel.buffer = 0;
        swx_shell_remember(s);
        swx_resync_begin(s, now, PROMPT_WITHOUT_MARK);
    } else {
        s->loss = "Another shell, which is no bash, has taken the place of the session's own (exec)";
        swx_session_lose(s);
    }
    return true;
}

static void check_running(swx_session *s, int64_t now, bool fresh)
{
    /* Without a mark, a wait like readline's may be that of another program in the same process (exec). */
    where at = swx_evidence_look(s, fresh ? LOOKS_AT_ONCE : 1);
    if (at == AT_PROMPT && s->run.readline_seen && !s->run.found.rank && !swx_shell_is_program_of(s, s->child.pid)) {
        s->run.readline_seen = false;
        at = NOT_YET;
    }
    if (at == AT_PROMPT && (!s->run.found.rank || !s->run.begun) && !swx_evidence_waits_for_input(s)) {
        swx_completion_look_again(s, now); /* the rest of the command is on its way, and a question would split it */
        return;
    }
    if (at == AT_PROMPT || (at == NO_EVIDENCE && s->run.found.rank)) {
        bool behind = s->shell.helper && helper_is_behind(s, now); /* before what it has printed is read */
        if (!swx_evidence_drained(s, now)) {
            if (s->state == RUNNING && swx_output_is_held(s)) {
                swx_completion_look_again(s, now);
            } else if (s->state == RUNNING) {
                swx_session_check_in(s, now, MS / 10);
            }
            return;
        }
        if (at == NO_EVIDENCE && !s->run.found.rank) { /* a START mark came, and the prompt was an earlier one */
            swx_completion_look_again(s, now);
            return;
        }
        if (is_early(s, now) || swx_completion_shows_prompt(s, now) || behind) {
            swx_session_check_in(s, now, MS);
            return;
        }
        if (swx_evidence_is_reader_ahead(s, at, now)) {
            return;
        }
        if (s->interrupt.group == s->child.pid && swx_kernel_has_newborn(s->child.pid)) {
            swx_completion_look_again(s, now); /* it may be about to take the terminal */
        } else if (s->run.found.rank && swx_interrupt_left_newborn(s)) {
            swx_buf_chop(&s->output.kept, (size_t)(s->output.kept.total - s->run.found.at));
            swx_resync_begin(s, now, MARK_IN_DOUBT);
        } else if (s->run.found.rank) {
            conclude_from_mark(s, now);
        } else {
            s->shell.lost_prompts++;
            swx_resync_begin(s, now, PROMPT_WITHOUT_MARK);
        }
        return;
    }
    if (fresh && s->run.found.rank) { /* the shell is on its way to its read */
        s->backoff = MS / 20;
    }
    if (!fresh && !s->run.begun && at == NOT_YET && is_past_start(s, now) && swx_evidence_drained(s, now) &&
        !s->run.begun) {
        begin_without_mark(s);
    }
    if (!fresh && !s->run.found.rank && at == NOT_YET && meets_another_shell(s, now)) {
        return;
    }
    swx_completion_look_again(s, now);
}

/* Asks a silent shell where the kernel does not tell and no mark came: if the command may have hidden the prompts, or
 * an interrupt has ended any `read` of the shell's.  In all other cases the shell may be reading, and must not read the
 * question. */
static bool asks_unheard(swx_session *s, int64_t now)
{
    bool unread = !s->run.begun; /* the shell waits for more of the command, as in an open quote of an alias */
    bool may = s->transport->has_processes && !has_evidence(s) && !s->run.found.rank && !s->run.notices &&
               !swx_output_is_held(s) &&
               (unread || (s->run.hints & SWX_HINT_HIDES) || s->interrupt.group == s->child.pid);
    int64_t worked = may && swx_evidence_is_still(s, now, true) ? swx_kernel_worked(s->child.pid) : 0;
    bool again = worked && worked == s->run.worked_when_still;
    s->run.worked_when_still = worked;
    if (!again || !swx_evidence_drained(s, now)) {
        return false;
    }
    s->run.worked_when_still = 0;
    if (swx_evidence_is_reader_ahead(s, NO_EVIDENCE, now)) {
        return true;
    }
    swx_completion_take_held(s);
    s->run.readline_seen = s->run.readline_seen || !swx_pty_is_canonical(&s->pty); /* as in swx_evidence_look */
    swx_resync_begin(s, now, unread ? PROMPT_WITHOUT_MARK : PROMPT_SEEN);
    return true;
}

/* Types the end of a command once the shell has read the rest and waits for more.  Only then can the terminal leave raw
 * mode. */
static void check_arriving(swx_session *s, int64_t now)
{
    where at = swx_evidence_look(s, LOOKS_AT_ONCE);
    if (at == NOT_YET || !swx_evidence_waits_for_input(s)) {
        swx_session_check_in(s, now, s->backoff);
        s->backoff = earlier(s->backoff * 2, 2 * MS);
        return;
    }
    if (s->input.raw && swx_pty_is_canonical(&s->pty)) { /* which may have cut it */
        s->loss = "PROMPT_COMMAND or a trap has changed the terminal's modes while a long command was typed";
        swx_session_lose(s);
        return;
    }
    s->input.arriving = false;
    s->run.delivered = now;
    swx_session_check_from(s, now, FIRST_CHECK);
    if (s->input.raw) {
        swx_pty_set_raw(&s->pty, false);
    }
    if (!swx_session_type_end(s)) {
        swx_session_lose(s);
    }
}

static void become_ready(swx_session *s, int64_t now)
{
    swx_session_become_idle(s, now);
    s->shell.start_marks = true;
    swx_shell_remember(s);
    s->shell.nonce_is_exposed = !s->transport->has_processes;
    swx_buf_clear(&s->output.kept);
    swx_session_begin(s, now);
    if (s->state == IDLE) {
        swx_session_finish_list(s, &s->interrupt.first, SWX_END_DONE, 0);
    }
}

static void check_starting(swx_session *s, int64_t now)
{
    if (!s->run.found.rank) {
        swx_session_check_in(s, now, LONGEST_CHECK);
        return;
    }
    s->shell.learn_until = s->shell.learn_until ? s->shell.learn_until : now + LEARN_LIMIT;
    for (unsigned i = 0; i < LOOKS_AT_ONCE; i++) {
        if (swx_kernel_learn(&s->kernel) != SWX_MORE || now > s->shell.learn_until) {
            s->shell.number = s->run.found.number;
            become_ready(s, now);
            return;
        }
    }
    swx_session_check_in(s, now, MS / 20);
}

/* Forgets the answer to a query if it was read before the prompt's mark came: then a program has read it. */
static void check_reply(swx_session *s, int64_t now)
{
    bool read = s->run.replied && typed_all(s) && swx_pty_input_consumed(&s->pty) && swx_evidence_drained(s, now);
    s->run.replied = s->run.replied && (!read || s->run.found.rank);
}

void swx_completion_check(swx_session *s, int64_t now, bool fresh)
{
    switch (s->state) {
    case STARTING: check_starting(s, now); break;
    case RUNNING:
        if (s->input.shell_may_have_piece) {
            swx_session_lose(s);
            break;
        }
        check_reply(s, now);
        if (s->state != RUNNING) {
            break;
        }
        if (s->input.arriving) {
            check_arriving(s, now);
        } else if (fresh ? s->run.found.rank > 0 : (s->run.found.rank > 0 || has_evidence(s))) {
            check_running(s, now, fresh);
        } else if (!fresh) {
            if (s->run.sync_newline_at && s->run.sync_newlines < SYNC_NEWLINES &&
                now - s->run.sync_newline_at > SYNC_GRACE) {
                type_empty_line(s, now);
            }
            if (!meets_another_shell(s, now) && !asks_unheard(s, now)) {
                swx_session_check_in(s, now, LONGEST_CHECK);
            }
        }
        break;
    case RESYNC: swx_resync_check(s, now); break;
    case IDLE:
        s->check = SWX_NEVER;
        swx_session_begin(s, now);
        break;
    default: s->check = SWX_NEVER; break;
    }
}
