/* Types to the terminal, and begins commands. */
#include "swx_session_private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "swx_tree.h"

enum { PACED_PIECE = 2000 }; /* bytes of a longer line that are written at a time: less than half of SWX_LINE_MAX */

/* A canonical terminal cuts a line that is too long, and a program may switch to canonical mode at any time.  So a long
 * line is written in pieces, each after the one before was read.  In canonical mode a piece without a newline is
 * written only while a program waits in a read, because that program cannot change the mode meanwhile, and VEOF passes
 * the piece on.  Without that the piece would stay in the terminal, and could end up with the shell.  If the shell is
 * at its prompt, the program has ended, and the shell may have read a piece. */
static bool has_reader(const swx_session *s)
{
    return has_evidence(s) ? swx_tree_has_reader(&s->child, s->pty.path)
                           : swx_kernel_group_awaits_input(swx_pty_foreground(&s->pty));
}

static void flush_paced(swx_session *s)
{
    while (!typed_all(s) && swx_pty_input_consumed(&s->pty)) {
        bool at_prompt = has_evidence(s) ? swx_kernel_look(&s->kernel) == SWX_SHELL_PROMPT : s->run.found.rank > 0;
        if (at_prompt && s->run.begun) {
            s->input.written = s->input.pending.size;
            s->input.shell_may_have_piece = s->input.passed_on;
            s->check = 0;
            return;
        }
        size_t part = s->input.pending.size - s->input.written < PACED_PIECE ? s->input.pending.size - s->input.written
                                                                             : PACED_PIECE;
        const uint8_t *from = s->input.pending.data + s->input.written, *end = memrchr(from, '\n', part);
        part = end ? (size_t)(end + 1 - from) : part;
        bool canonical = swx_pty_is_canonical(&s->pty);
        if (!end && canonical && (!has_reader(s) || !swx_pty_is_canonical(&s->pty))) {
            return;
        }
        ssize_t size = write(s->pty.master, from, part);
        if (size <= 0) {
            return;
        }
        s->input.written += (size_t)size;
        s->input.passed_on = from[size - 1] != '\n';
        uint8_t key = swx_pty_end_of_input(&s->pty);
        if (s->input.passed_on && canonical && write(s->pty.master, &key, 1) != 1) {
            return;
        }
        if (!has_evidence(s)) { /* first see whether a mark says that the program has ended: swx_session_due reads */
            return;
        }
    }
}

void swx_typing_forget(swx_session *s)
{
    swx_buf_clear(&s->input.pending);
    s->input.written = s->input.replies = 0;
    s->input.paced = false;
}

void swx_session_flush_pending(swx_session *s)
{
    if (s->input.paced) {
        flush_paced(s);
        if (!typed_all(s)) {
            return;
        }
    }
    while (s->input.written < s->input.pending.size) {
        ssize_t size =
            write(s->pty.master, s->input.pending.data + s->input.written, s->input.pending.size - s->input.written);
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size <= 0) {
            return; /* full: writable will come; anything worse shows as the shell's end */
        }
        s->input.written += (size_t)size;
    }
    swx_typing_forget(s);
}

bool swx_session_type_bytes(swx_session *s, const void *bytes, size_t size)
{
    if (swx_buf_append(&s->input.pending, bytes, size) != SWX_OK) {
        return false;
    }
    swx_session_flush_pending(s);
    return true;
}

bool swx_session_type_end(swx_session *s)
{
    const uint8_t *text = s->input.tail.data, *end = s->input.hidden ? memchr(text, '\n', s->input.tail.size) : NULL;
    size_t line = end ? (size_t)(end - text) : s->input.tail.size;
    bool typed = swx_session_type_bytes(s, text, line) &&
                 (!end || swx_session_type_bytes(s, SWX_QUOTED_NEWLINE, sizeof(SWX_QUOTED_NEWLINE) - 1));
    if (s->input.hidden) {
        swx_pty_show(&s->pty);
    }
    if (end) {
        typed = typed && swx_session_type_bytes(s, &s->pty.baseline.c_cc[VEOF], 1) &&
                swx_session_type_bytes(s, end + 1, s->input.tail.size - line - 1);
    }
    s->input.hidden = s->input.raw = false;
    swx_buf_clear(&s->input.tail);
    return typed;
}

bool swx_session_drop_input(swx_session *s)
{
    bool dropped = s->transport->drop_input(s);
    s->input.half_line = s->input.half_line && !dropped;
    return dropped;
}

/* ---- beginning a command ---- */

static void expect_end(swx_session *s, int64_t now, bool at_prompt)
{
    s->state = RUNNING;
    s->run.found = (candidate){ 0 };
    s->run.expects_start = at_prompt && s->shell.start_marks;
    s->run.begun = !s->run.expects_start;
    if (at_prompt) {
        s->run.read_before = s->run.expects_start || !has_evidence(s) ? -1 : swx_kernel_bytes_read(s->child.pid);
        s->facts.commenced = now;
        s->run.newest_before = s->shell.jobs || s->shell.helper ? swx_kernel_last_start() : 0;
        s->run.newest_before = s->run.newest_before < 0 ? INT64_MAX : s->run.newest_before;
    }
    s->run.number_too_high = s->run.empty_line_before = false;
    s->run.start_dropped =
        s->shell.start_marks || s->answer.report.no_stderr; /* the prompts show no text of the user's */
    s->run.helper_until = 0;
    s->run.delivered = s->output.last_data = now;
    /* readline cannot be seen there, so it may be on */
    s->run.readline_seen = !s->transport->has_terminal && (s->run.hints & SWX_SCAN_EDITING);
    s->run.interrupted_at = s->run.sync_newline_at = s->run.worked_when_still = 0;
    s->run.notices = 0;
    swx_session_check_from(s, now, FIRST_CHECK);
}

static bool type_startup(swx_session *s, const swx_op *op)
{
    s->shell.reassert = !has_evidence(s); /* a prompt that the user has set could not be noticed */
    swx_startup startup = { .script = op->typed,
                            .size = op->typed_size,
                            .elsewhere = !s->transport->has_terminal,
                            .reassert = s->shell.reassert };
    if (swx_shelltext_startup(&s->input.pending, &s->marks, &startup) != SWX_OK) {
        swx_typing_forget(s); /* half of the script */
        return false;
    }
    swx_session_flush_pending(s); /* in one write, so that the shell wakes once */
    return true;
}

static bool has_long_line(const uint8_t *bytes, size_t size, size_t column, size_t most)
{
    for (size_t i = 0; i < size; i++) {
        column = bytes[i] == '\n' ? 0 : column + 1;
        if (column > most) {
            return true;
        }
    }
    return false;
}

/* Whatever reads them may change the modes, and may leave the last line unread. */
void swx_typing_note(swx_session *s, const uint8_t *bytes, size_t size)
{
    s->shell.modes_may_differ = !s->transport->has_terminal;
    s->input.half_line = size ? bytes[size - 1] != '\n' && bytes[size - 1] != '\r' : s->input.half_line;
    const uint8_t *end = size ? memrchr(bytes, '\n', size) : NULL;
    if (!s->input.paced && s->transport->has_terminal && has_long_line(bytes, size, s->input.column, SWX_LINE_MAX)) {
        s->input.paced = true;
        s->input.passed_on = false;
    }
    s->input.column = end ? size - (size_t)(end + 1 - bytes) : s->input.column + size;
}

static size_t last_line(const uint8_t *text, size_t size)
{
    const uint8_t *before = size > 1 ? memrchr(text, '\n', size - 1) : NULL;
    return before ? (size_t)(before + 1 - text) : 0;
}

/* Whether it is one line for the shell at its prompt that a terminal in canonical mode would cut. */
static bool is_long_line(const swx_session *s, const swx_op *op)
{
    return op->kind == SWX_OP_LINE && s->transport->has_terminal && last_line(op->typed, op->typed_size) == 0 &&
           has_long_line(op->typed, op->typed_size, 0, SWX_LINE_MAX - 1);
}

/* Types a command, or its first part; the rest follows when the shell has read that. */
static bool type_command(swx_session *s, const swx_op *op, bool at_prompt)
{
    size_t part = op->typed_size;
    s->input.hidden = at_prompt && part && swx_pty_hide(&s->pty);
    s->input.raw = at_prompt && part > RAW_TAIL && (op->raw || is_long_line(s, op));
    if (s->input.raw) {
        s->input.paced = false; /* it is for the shell, not for a program */
        part -= RAW_TAIL;
    } else if (s->input.hidden) {
        part = op->kind == SWX_OP_RUN ? last_line(op->typed, part) : 0;
    }
    if (part < op->typed_size && swx_buf_append(&s->input.tail, op->typed + part, op->typed_size - part) != SWX_OK) {
        return false;
    }
    s->input.arriving = s->input.raw || (s->input.hidden && (part || s->run.empty_line_before));
    if (s->input.raw) {
        swx_pty_set_raw(&s->pty, true);
    }
    return swx_session_type_bytes(s, op->typed, part) &&
           (s->input.arriving || !s->input.tail.size || swx_session_type_end(s));
}

static unsigned count_lines(const uint8_t *text, size_t size)
{
    unsigned lines = 0;
    for (size_t i = 0; i < size; i++) {
        lines += text[i] == '\n';
    }
    return lines;
}

bool swx_typing_can_begin(const swx_session *s)
{
    const swx_op *op = s->queue.first;
    return op && !op->held && !s->current && !s->input.shell_may_have_piece &&
           (s->state == IDLE || (s->state == RUNNING && !s->input.arriving && op->kind == SWX_OP_LINE));
}

/* Why the text cannot be typed at all, or NULL. */
static const char *refusal(const swx_session *s, const swx_op *op)
{
    if (s->transport->has_terminal) {
        return NULL;
    }
    if (op->kind == SWX_OP_LINE && has_long_line(op->typed, op->typed_size, 0, SWX_LINE_MAX)) {
        return "a line for a terminal elsewhere has at most 4095 bytes";
    }
    return op->raw ? "a terminal elsewhere cannot be put into raw mode for a command" : NULL;
}

/* Whether an empty line must come before the command.  It lets the shell report jobs that have ended, and run a trap on
 * SIGCHLD: bash 5.2 loses a line that it reads in several parts while such a trap is pending.  So it is typed while
 * there are jobs or their number is unknown, and before long lines. */
static bool wants_pause(const swx_session *s, const swx_op *op)
{
    bool silent =
        s->shell.marks_impossible && s->answer.report.no_stderr; /* the prompt with the number of jobs is not seen */
    bool parts =
        op->kind == SWX_OP_RUN ? has_long_line(op->typed, op->typed_size, 0, SWX_SHELL_READ - 1) : is_long_line(s, op);
    return silent || (s->shell.start_marks && (s->shell.jobs || s->shell.owed)) ||
           ((s->shell.start_marks ||
             (s->shell.guard && !s->shell.prompt_follows_guard && s->transport->has_processes)) &&
            parts);
}

/* Asks the shell before the first operation is typed, if our elements of PROMPT_COMMAND must change for it.  It gets
 * them to put the prompts back, to mark the ends of commands, or to keep the terminal's modes, where a command may hide
 * the prompts or change the modes and that could not be noticed, or the shell could not be asked afterwards.  Elements
 * that it has are written without braces if a brace may become an alias.  True: the question was typed. */
static bool arms_first(swx_session *s, const swx_op *op, bool at_prompt, int64_t now)
{
    const bool runs = op->kind == SWX_OP_RUN, told = has_evidence(s), armed = s->shell.reassert || s->shell.guard;
    const bool prompts = op->hints & (SWX_HINT_PROMPT | SWX_HINT_SOURCE);
    const bool touches = runs ? prompts : op->kind == SWX_OP_LINE && op->typed_size;
    const bool hides = !told && runs && (op->hints & SWX_HINT_STDERR) && !s->shell.guard;
    const bool last = runs && (op->hints & SWX_HINT_LAST) && !armed && !s->shell.marks_impossible;
    /* after the command the terminal may have modes in which no question can be typed, such as a letter that erases */
    const bool modes = !s->transport->has_terminal && runs && (op->hints & SWX_SCAN_STTY) && !s->shell.adds_cr &&
                       !s->shell.keeps_modes;
    const bool arms = at_prompt && (last || hides || modes || (!s->transport->has_processes && !armed && touches));
    const bool spoils = at_prompt && !s->shell.brace_may_be_alias && (op->hints & SWX_HINT_BRACE);
    const bool rewrites = arms || (spoils && (armed || s->shell.marks_impossible));
    s->shell.brace_may_be_alias = s->shell.brace_may_be_alias || spoils;
    if (arms) {
        s->shell.keeps_modes = modes;
        s->shell.guard = s->shell.guard || hides;
        s->shell.reassert = s->shell.reassert || !modes || prompts;
    }
    if (rewrites) { /* no command is in doubt: the answer's `$?`, `$_` and PIPESTATUS are put back as they are */
        s->run.found = (candidate){ 0 };
        swx_resync_begin(s, now, NO_DOUBT);
    }
    return rewrites;
}

/* Makes the operation the one whose command runs, and resets what is known of the running command. */
static void make_current(swx_session *s, swx_op *op, bool at_prompt, int64_t now)
{
    s->current = op;
    if (at_prompt) {
        s->run = (swx_run){ .base = s->shell.number };
        s->input.column = 0;
    }
    s->run.hints |= op->hints;
    s->run.numbers_may_skip = op->kind == SWX_OP_LINE;
    size_t limit = op->stream && s->output.limit < SWX_STREAM_LEAST ? SWX_STREAM_LEAST : s->output.limit;
    limit +=
        op->searched_by_owner ? SWX_SEARCH_BEHIND : 0; /* output after a match must not displace the output before it */
    swx_output_begin(s, limit, at_prompt);
    if (at_prompt || op->typed_size) { /* else it only waits for the end of the command that runs */
        expect_end(s, now, at_prompt);
    }
    s->run.lines = count_lines(op->typed, op->typed_size);
    op->typed_out = true;
    swx_output_begin_search(s, op, s->output.kept.total);
}

static void type_current(swx_session *s, swx_op *op, bool at_prompt, int64_t now)
{
    bool typed = true;
    if (op->kind == SWX_OP_START) {
        op->deadline = op->step < SWX_NEVER - now ? now + op->step : SWX_NEVER;
        typed = type_startup(s, op);
        op->typed_size = 0;
    }
    if (at_prompt && wants_pause(s, op)) {
        typed = swx_session_type_bytes(s, "\n", 1);
        s->run.empty_line_before = true;
    }
    if (op->kind == SWX_OP_LINE && op->typed_size) {
        swx_typing_note(s, op->typed, op->typed_size);
    }
    if (!typed || !type_command(s, op, at_prompt)) {
        s->current = NULL;
        if (s->input.raw) {
            swx_pty_set_raw(&s->pty, false);
        }
        s->input.arriving = s->input.raw = s->input.hidden = false;
        swx_buf_clear(&s->input.tail);
        swx_session_finish(s, op, SWX_END_MEMORY, 0);
    } else if (s->input.arriving) {
        swx_session_check_from(s, now, MS / 20);
    }
}

/* Ends the first operation before it changes anything. */
static void refuse_first(swx_session *s, swx_error why)
{
    swx_op *op = swx_session_take_first(s);
    op->error = why;
    swx_session_finish(s, op, SWX_END_SYSTEM, 0);
}

static void begin_first(swx_session *s, int64_t now)
{
    swx_op *op = s->queue.first;
    bool at_prompt = s->state == IDLE, asks = at_prompt && op->kind == SWX_OP_LINE && !op->typed_size;
    swx_error failed;
    const char *refused = refusal(s, op);
    if (refused) {
        refuse_first(s, (swx_error){ .status = SWX_ELIMIT, .text = refused });
        return;
    }
    if (at_prompt && !asks && swx_session_unpark(s, now, &failed) != SWX_OK) {
        swx_session_ended(s, now); /* if the shell has just ended, that is the reason to tell */
        if (s->queue.first == op) {
            refuse_first(s, failed);
        }
        return;
    }
    if (arms_first(s, op, at_prompt, now)) {
        return;
    }
    swx_session_take_first(s);
    if (asks) { /* it only asks how the last command ended */
        op->typed_out = true;
        s->current = op;
        swx_session_finish_claimant(s, SWX_END_DONE, s->shell.code);
    } else if (at_prompt && !swx_session_drop_input(s)) {
        swx_session_finish(s, op, SWX_END_MEMORY, 0);
    } else {
        make_current(s, op, at_prompt, now);
        type_current(s, op, at_prompt, now);
    }
}

void swx_session_begin(swx_session *s, int64_t now)
{
    while (swx_typing_can_begin(s)) {
        begin_first(s, now);
    }
}
