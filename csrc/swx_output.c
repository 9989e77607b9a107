/* Reads the terminal: output, marks, answers, queries, and matches of patterns. */
#include "swx_session_private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { UNCLAIMED_LIMIT = 1 << 20 }; /* bytes kept of a command whose operation has ended */
enum {
    READ_SIZE = 4096, /* a terminal gives no more at a time; threads of callers may have 64 KiB of stack */
    READS_PER_CALL = 64,
    MARGIN = 128 * 1024, /* bytes that a reader may be further behind while the end of the output is read */
    SHORT_READ = 2048,
    REPLIES_MOST = 4096,        /* bytes for a program that does not read, which could ask without end */
    UNSEARCHED_LIMIT = 64 << 20 /* bytes that an owner's search may be behind where reading does not wait for it */
};

void swx_output_hand_over(swx_session *s, swx_op *op)
{
    op->output = s->output.kept;
    s->output.reader_is_behind = false;
    swx_buf_init(&s->output.kept, UNCLAIMED_LIMIT);
    swx_session_restart_output(s);
}

void swx_output_begin(swx_session *s, size_t limit, bool anew)
{
    swx_buf *kept = &s->output.kept;
    s->output.reader_is_behind = false;
    if (!anew) {
        kept->limit = !swx_buf_dropped(kept) && kept->limit < limit ? limit : kept->limit;
        return;
    }
    if (kept->limit == limit) {
        swx_buf_clear(kept);
    } else {
        swx_buf_free(kept);
        swx_buf_init(kept, limit);
    }
    swx_session_restart_output(s);
}

/* Keeps a matched operation current until the command ends or its grace is over, so that the next operation does not
 * begin before the exit code is known. */
static void keep_for_code(swx_session *s, swx_op *op)
{
    op->matched = true;
    op->deadline = op->grace < SWX_NEVER - s->output.last_data ? s->output.last_data + op->grace : SWX_NEVER;
    op->quiet = 0;
    swx_output_hand_over(s, op);
    if (op->stream && op->news) {
        op->news(op);
    }
}

static void take_hit(swx_session *s, swx_op *op, swx_hit hit)
{
    bool waits = op == s->current && op->grace;
    hit.start += op->base;
    hit.end += op->base;
    if (hit.start <= s->output.kept.total) {
        swx_buf_chop(&s->output.kept, (size_t)(s->output.kept.total - hit.start));
    }
    size_t dropped = op == s->current ? swx_completion_drop_start(s) : 0;
    hit.start -= dropped < hit.start ? dropped : hit.start;
    hit.end -= dropped < hit.end ? dropped : hit.end;
    op->hit = hit;
    if (waits) {
        keep_for_code(s, op);
        return;
    }
    swx_session_finish_claimant(s, SWX_END_MATCHED, 0);
}

swx_op *swx_output_matching(const swx_session *s)
{
    swx_op *op = swx_session_claimant(s);
    bool searches = op && (op->match || op->searched_by_owner);
    return searches && !op->matched && s->run.begun ? op : NULL;
}

void swx_output_begin_search(const swx_session *s, swx_op *op, uint64_t base)
{
    op->base = base;
    op->searched = 0;
    if (op->match) {
        swx_match_reset(op->match);
    } else if (op->searched_by_owner) {
        swx_buf_free(&op->heard);
        swx_buf_free(&op->unsearched);
        swx_buf_init(&op->heard, s->output.limit + SWX_SEARCH_BEHIND);
        swx_buf_init(&op->unsearched, UNSEARCHED_LIMIT);
    }
}

/* Answers the queries of programs to their terminal (ECMA-48 DSR and DA), so that none waits forever.  s->output.query
 * is 1 after an ESC, and 2 after its bracket. */
static void answer_queries(swx_session *s, const uint8_t *bytes, size_t size)
{
    enum { ONE_DIGIT = 3, DIGITS = ONE_DIGIT + 10 };
    if (s->input.arriving) {
        return; /* an answer must not get into a half-typed command */
    }
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = bytes[i];
        if (byte == 0x1b) {
            s->output.query = 1;
        } else if (s->output.query == 0) {
            return; /* a span without an escape at its beginning has none at all */
        } else if (s->output.query == 1) {
            s->output.query = byte == '[' ? 2 : 0;
        } else if (byte >= '0' && byte <= '9') {
            s->output.query = s->output.query == 2 ? ONE_DIGIT + byte - '0' : DIGITS;
        } else {
            /* a program that uses the screen sets modes */
            s->shell.modes_may_differ =
                s->shell.modes_may_differ || (!s->transport->has_terminal && s->output.query == 2 && byte == '?');
            const char *answer = byte == 'n' && s->output.query == ONE_DIGIT + 6                         ? "\033[1;1R"
                                 : byte == 'n' && s->output.query == ONE_DIGIT + 5                       ? "\033[0n"
                                 : byte == 'c' && (s->output.query == 2 || s->output.query == ONE_DIGIT) ? "\033[?1;2c"
                                                                                                         : NULL;
            s->output.query = 0;
            if (answer && s->input.replies < REPLIES_MOST && !swx_pty_is_canonical(&s->pty)) {
                s->input.replies += strlen(answer);
                s->run.replied = true;
                swx_session_type_bytes(s, answer, strlen(answer));
            }
        }
    }
}

/* Ends the operation whose output was lost, or not searched, for want of memory; the rest of the output is dropped. */
static void run_out_of_memory(swx_session *s)
{
    swx_session_finish_claimant(s, SWX_END_MEMORY, 0);
    swx_buf_free(&s->output.kept);
    swx_session_restart_output(s);
}

static swx_status keep_for_owner(swx_op *op, const uint8_t *bytes, size_t size)
{
    if (swx_buf_append(&op->unsearched, bytes, size) != SWX_OK || swx_buf_append(&op->heard, bytes, size) != SWX_OK) {
        return SWX_ENOMEM;
    }
    return swx_buf_dropped(&op->unsearched) ? SWX_ELIMIT : SWX_MORE;
}

void swx_output_take_output(swx_session *s, const uint8_t *bytes, size_t size)
{
    while (size) {
        swx_op *op = swx_output_matching(s);
        size_t part = size;
        swx_hit hit;
        swx_status status = SWX_MORE;
        if (op && op->match) {
            status = swx_match_feed(op->match, bytes, size, &part, &hit);
            part = status == SWX_ENOMEM || status == SWX_ELIMIT ? size : part;
        } else if (op) {
            status = keep_for_owner(op, bytes, size);
        }
        if (!swx_session_claimant(s)) {
            s->facts.late += part;
        }
        bool kept = swx_buf_append(&s->output.kept, bytes, part) == SWX_OK;
        bytes += part;
        size -= part;
        if (!kept || status == SWX_ENOMEM) {
            run_out_of_memory(s);
        } else if (status == SWX_ELIMIT) {
            swx_session_finish_claimant(s, SWX_END_COSTLY, 0);
        } else if (status == SWX_OK) {
            take_hit(s, op, hit);
        }
    }
}

void swx_output_take_plain(swx_session *s, const uint8_t *bytes, size_t size)
{
    switch (s->state) {
    case RUNNING:
        answer_queries(s, bytes, size);
        swx_output_take_output(s, bytes, size);
        break;
    case RESYNC:
        /* Output that was on its way when the shell was seen at its prompt. */
        if (s->resync.phase == ASK && (s->resync.owner_saw_end || s->resync.input_moved) && !s->resync.answered) {
            s->give_up = s->output.last_data + RESYNC_LIMIT;
            swx_output_take_output(s, bytes, size);
        } else if (s->resync.phase == ASK) {
            if (s->answer.part != PART_NOISE &&
                swx_buf_append(&s->answer.parts[s->answer.part], bytes, size) != SWX_OK) {
                swx_session_lose(s); /* half of the answer must not be typed */
            }
        }
        break;
    case STARTING: swx_output_take_output(s, bytes, size); break; /* what cannot start the shell says why */
    default: s->facts.late += size; break;
    }
}

static void take_start(swx_session *s)
{
    if (s->state == RUNNING && s->run.begun && !s->run.start_dropped) { /* PS0 is ours again */
        swx_buf_clear(&s->answer.parts[PART_PS0]);
        s->run.start_dropped = !s->output.kept.total;
        swx_completion_drop_start(s);
    }
    if (s->state != RUNNING || s->run.begun) {
        return;
    }
    s->run.begun = s->run.started = true;
    s->run.found = (candidate){ 0 };
    if (s->transport->fork) {
        s->run.delivered = s->output.last_data; /* an interrupt counts its grace from here */
    }
    if (s->output.kept.total && swx_completion_start_may_be_late(s)) {
        return;
    }
    s->facts.late += s->output.kept.total;
    swx_buf_clear(&s->output.kept);
    swx_session_restart_output(s);
    swx_op *op = s->current;
    if (op) {
        op->taken = 0;
        swx_output_begin_search(s, op, 0);
    }
}

static int rank_of(const swx_session *s, const swx_mark *mark)
{
    if (mark->kind == SWX_MARK_GUARD) {
        return s->shell.guard ? 2 : 0;
    }
    if (s->state == STARTING || s->state == RESYNC) {
        return 2;
    }
    if (mark->number == s->shell.number) {
        return s->run.started ? 0 : s->run.numbers_may_skip ? 2 : 1;
    }
    return mark->number == s->shell.number + 1 || (s->run.numbers_may_skip && mark->number > s->shell.number) ? 2 : 0;
}

static void take_prompt(swx_session *s, const swx_mark *mark)
{
    int rank = rank_of(s, mark);
    candidate *found = &s->run.found;
    bool passes = rank && (mark->kind == SWX_MARK_GUARD || (s->state == RUNNING && mark->number == s->shell.number));
    /* The prompt of the empty line, which without evidence would pass for the command's. */
    if (s->run.empty_line_before && passes && !has_evidence(s)) {
        s->run.empty_line_before = false;
        return;
    }
    s->run.number_too_high = s->run.number_too_high ||
                             (s->state == RUNNING && !s->run.numbers_may_skip && mark->number > s->shell.number + 1);
    bool late = s->state == RESYNC && s->resync.phase == ASK && s->resync.owner_saw_end && !s->resync.answered;
    bool awaited =
        s->state == RUNNING || s->state == STARTING || late || (s->state == RESYNC && s->resync.phase == RESTORE);
    if (!awaited || !rank || rank < found->rank) {
        return;
    }
    bool guard = mark->kind == SWX_MARK_GUARD, lost = !mark->ps1_kept || (s->shell.start_marks && !mark->ps0_kept);
    if (!guard) {
        s->shell.input_named = s->shell.input_named || mark->input_named;
        s->shell.input_moved = s->shell.input_named && !mark->input_named;
    }
    bool again =
        guard ? found->rank > 0 : found->rank == rank && (!s->run.numbers_may_skip || mark->number == found->number);
    *found = (candidate){ .rank = rank,
                          .code = mark->code,
                          .conflict = again && (found->conflict || found->code != mark->code),
                          .altered = !guard && mark->code >= 0 && lost,
                          .ps0_kept = mark->ps0_kept,
                          .number = mark->number,
                          .jobs = mark->jobs,
                          .at = s->output.kept.total };
}

static void take_mark(swx_session *s, const swx_mark *mark, int64_t now)
{
    switch (mark->kind) {
    case SWX_MARK_START: take_start(s); break;
    case SWX_MARK_PROMPT:
    case SWX_MARK_GUARD: take_prompt(s, mark); break;
    case SWX_MARK_REPORT:
        if (s->state == RESYNC && s->resync.phase == ASK) {
            for (size_t i = 0; i < SWX_COUNT(s->answer.parts); i++) {
                swx_buf_clear(&s->answer.parts[i]); /* an interrupted answer may have left some */
            }
            if (!s->resync.answered) {
                swx_buf_chop(&s->output.kept,
                             s->resync.input_moved ? (size_t)(s->output.kept.total - s->run.found.at) : 0);
                s->answer.report = *mark;
                s->answer.report.code = mark->code < 0 ? 0 : mark->code;
                if (s->resync.code_before >= 0) {
                    s->answer.report.code = s->resync.code_before;
                }
                s->resync.answered = true;
            }
            s->answer.part = PART_STATE;
        }
        break;
    case SWX_MARK_VALUE: s->answer.part += s->answer.part != PART_NOISE && s->answer.part != PART_MODES; break;
    case SWX_MARK_END:
        if (s->state == RESYNC && s->resync.phase == ASK && s->resync.answered) {
            s->answer.report.no_stderr = mark->no_stderr;
            s->answer.report.fixed_prompt = mark->fixed_prompt;
            if (s->resync.owner_saw_end) {
                swx_resync_end_doubt(s);
            }
            s->resync.phase = AWAIT_PROMPT;
            s->backoff = MS / 20;
            swx_session_check_in(s, now, 0);
        }
        break;
    }
}

static void take(swx_session *s, const uint8_t *bytes, size_t size, int64_t now)
{
    const uint8_t *plain;
    size_t plain_size;
    swx_mark mark;
    s->output.last_data = now;
    for (;;) {
        switch (swx_marks_next(&s->marks, &bytes, &size, &plain, &plain_size, &mark)) {
        case SWX_MARKS_MORE: return;
        case SWX_MARKS_PLAIN: swx_output_take_plain(s, plain, plain_size); break;
        case SWX_MARKS_MARK: take_mark(s, &mark, now); break;
        }
    }
}

/* Turns "\r\n" back to "\n" for a terminal that cannot be told to leave "\n" alone.  That is exact, because a program's
 * own "\r\n" arrives as "\r\r\n".  There is room for a byte before `bytes`, for a CR that was held back.  Returns where
 * the bytes begin now. */
static uint8_t *uncook(swx_session *s, uint8_t *bytes, size_t *size)
{
    if (s->output.cr_held) {
        *--bytes = '\r';
        ++*size;
    }
    s->output.cr_held = bytes[*size - 1] == '\r';
    *size -= s->output.cr_held;
    uint8_t *end = bytes + *size, *to = memchr(bytes, '\r', *size);
    for (uint8_t *from = to; from && from < end; from++) {
        if (*from != '\r' || from + 1 == end || from[1] != '\n') {
            *to++ = *from;
        }
    }
    *size = to ? (size_t)(to - bytes) : *size;
    return bytes;
}

/* ---- a reader that is behind ---- */

/* How many bytes a reader may be behind.  Up to half of the limit, the bytes it has yet to take are in the head or the
 * tail of the buffer. */
static uint64_t most_behind(const swx_session *s, bool whole)
{
    return whole ? s->output.kept.limit / 2 - MARGIN : s->output.kept.limit / 4;
}

static bool streams(const swx_session *s)
{
    return s->current && s->current->stream && !s->current->matched && s->state == RUNNING && s->run.begun;
}

static uint64_t behind(const swx_session *s)
{
    return s->output.kept.total > s->current->taken ? s->output.kept.total - s->current->taken : 0;
}

/* Whether an operation waits for the end of the command, which comes after all of its output. */
static bool is_to_end(const swx_session *s)
{
    for (const swx_op *op = s->queue.first; op; op = op->link) {
        if (op->kind == SWX_OP_LINE && !op->typed_size) {
            return true;
        }
    }
    return s->interrupt.first;
}

/* Whether the owner's search is more than SWX_STREAM_LEAST + `more` bytes behind. */
static bool search_is_behind(const swx_session *s, size_t more)
{
    return s->current && s->current->unsearched.size >= SWX_STREAM_LEAST + more;
}

bool swx_output_is_held(const swx_session *s)
{
    return ((s->output.reader_is_behind && streams(s)) || search_is_behind(s, 0)) && !is_to_end(s);
}

bool swx_session_wants_read(const swx_session *s)
{
    return s->state != CLOSED && !s->parking.hung_up && !swx_output_is_held(s);
}

void swx_output_make_room(swx_session *s, int64_t now)
{
    uint64_t most = most_behind(s, false);
    if (s->output.reader_is_behind && behind(s) <= most - (most / 2 < SWX_STREAM_LEAST ? most / 2 : SWX_STREAM_LEAST)) {
        s->output.reader_is_behind = false;
        s->output.last_data = now; /* it was not silent: it was not heard */
    }
}

/* Whether another read has to wait for the reader.  whole: for the end of the output the margin is added. */
static bool has_no_room(swx_session *s, bool whole)
{
    if (search_is_behind(s, whole ? MARGIN : 0)) {
        return !is_to_end(s);
    }
    if (!streams(s)) {
        return false;
    }
    s->output.reader_is_behind = s->output.reader_is_behind || behind(s) >= most_behind(s, false);
    return swx_output_is_held(s) && (!whole || behind(s) >= most_behind(s, true));
}

bool swx_output_read(swx_session *s, bool whole, int64_t now)
{
    uint8_t room[1 + READ_SIZE];
    for (unsigned i = 0; i < READS_PER_CALL; i++) {
        if (has_no_room(s, whole)) {
            return true;
        }
        uint8_t *bytes = room + 1;
        ssize_t size = read(s->pty.master, bytes, READ_SIZE);
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size < 0 && errno == EIO && s->pty.slave < 0) {
            swx_session_end_hangup(s);
        }
        if (size <= 0) {
            return false;
        }
        size_t left = (size_t)size;
        if (s->shell.adds_cr) {
            bytes = uncook(s, bytes, &left);
        }
        take(s, bytes, left, now);
        if (size < SHORT_READ && !whole) {
            return false;
        }
    }
    return true;
}

/* ---- a search by the owner ---- */

void swx_session_take_unsearched(swx_session *s, swx_op *op, swx_buf *bytes, uint64_t *at, int64_t now)
{
    *bytes = op->unsearched;
    *at = op->searched;
    op->searched += op->unsearched.size;
    if (op == s->current && search_is_behind(s, 0)) {
        s->output.last_data = now; /* it was not silent: it was not heard */
    }
    swx_buf_init(&op->unsearched, UNSEARCHED_LIMIT);
}

/* Notes a match found after the operation has ended, in output that was still being searched. */
static void take_late_hit(swx_op *op, const swx_hit *hit)
{
    bool heard_all = op->end == SWX_END_DONE || op->end == SWX_END_DIED || op->end == SWX_END_LOST ||
                     op->end == SWX_END_TIMEOUT || op->end == SWX_END_QUIET;
    if (!hit) {
        op->end = op->end == SWX_END_DONE ? SWX_END_COSTLY : op->end;
        return;
    }
    if (!heard_all) {
        return;
    }
    op->ended = op->end == SWX_END_DONE;
    op->end = SWX_END_MATCHED;
    op->hit = *hit;
    size_t behind = (size_t)(op->heard.total - hit->start);
    if (op->base) { /* the output begins before the search */
        swx_buf_chop(&op->output, behind);
    } else {
        swx_buf_chop(&op->heard, behind);
        swx_buf_free(&op->output);
        op->output = op->heard;
        swx_buf_init(&op->heard, 2);
    }
}

void swx_session_found(swx_session *s, swx_op *op, const swx_hit *hit, int64_t now)
{
    if (op->matched || (hit && hit->end > op->searched)) { /* the search has begun anew meanwhile */
        return;
    }
    if (op->end != SWX_END_NONE) {
        take_late_hit(op, hit);
        return;
    }
    if (op != swx_session_claimant(s)) {
        return;
    }
    swx_buf_free(&op->unsearched);
    if (hit) {
        take_hit(s, op, *hit);
    } else {
        swx_session_finish_claimant(s, SWX_END_COSTLY, 0);
    }
    s->check = earlier(s->check, now);
}

/* ---- calls of the owner ---- */

void swx_output_tell_news(swx_session *s)
{
    swx_op *op = swx_session_claimant(s);
    if (op && op->news && (op->unsearched.size || (streams(s) && behind(s)))) {
        op->news(op);
    }
}

void swx_session_readable(swx_session *s, int64_t now)
{
    if (s->state == CLOSED) {
        return;
    }
    bool parked = s->pty.slave < 0;
    swx_output_read(s, false, now);
    /* It was hung up: without a pidfd that is the only sign that the shell has ended. */
    if (parked && (s->parking.hung_up || s->pty.slave >= 0)) {
        swx_session_ended(s, now);
    }
    if (s->run.found.rank || s->state == RESYNC) {
        swx_completion_check(s, now, true);
    } else if (s->state == RUNNING) {
        s->backoff = FIRST_CHECK; /* a prompt without a mark would come right after the output */
        s->check = earlier(s->check, now + s->backoff);
    }
    swx_session_begin(s, now);
    swx_output_tell_news(s);
}

void swx_session_writable(swx_session *s)
{
    if (s->state != CLOSED) {
        swx_session_flush_pending(s);
    }
}
