/* The session alone, in one thread: turns.h is the event loop. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "programs.h"
#include "turns.h"
#include "alloc.h"

/* A prompt of the user's costs one question, and the prompts of PROMPT_COMMAND do not cost one each. */
static void test_questions_about_prompts(void)
{
    swx_session *s = open_session(1 << 20);
    CHECK(swx_session_look(s).kernel_proof && swx_session_look(s).questions == 0);
    expect_run(s, "printf out; PS1='$ '; (exit 7)\n", 7, "out");
    CHECK(swx_session_look(s).questions == 1);
    expect_run(s, "PROMPT_COMMAND='PS1=mine\\>'\n", 0, "");
    expect_run(s, "echo one\n", 0, "one\n");
    expect_run(s, "echo two; (exit 5)\n", 5, "two\n");
    uint64_t questions = swx_session_look(s).questions;
    expect_run(s, "echo three $?\n", 0, "three 5\n");
    CHECK(swx_session_look(s).questions == questions);
    close_session(s);
}

/* Prompts that change without a hint, as by a function of the startup files, where the marks alone tell. */
static void test_prompts_without_the_kernel(void)
{
    static const char *const prompts[] = { "PS1='$ '\n", "unset PS1 PS0\n", "PROMPT_COMMAND='PS1=x PS0=y PS2=z'\n" };
    swx_session *s = open_configured(1 << 20, true);
    CHECK(!swx_session_look(s).kernel_proof);
    for (size_t i = 0; i < SWX_COUNT(prompts); i++) {
        expect_run(s, prompts[i], 0, "");
        expect_run(s, "echo one; (exit 5)\n", 5, "one\n");
    }
    close_session(s);
}

static void check_no_children(void) { CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD); }

/* One after the other; the end of the queue moves back, and what comes next stands there. */
static void test_queue(void)
{
    swx_session *s = open_session(1 << 20);
    swx_op first = operation(SWX_OP_RUN, "read x\n"), second = operation(SWX_OP_RUN, "n=2; echo second; (exit 2)\n"),
           dropped = operation(SWX_OP_RUN, "echo no\n"), kept = operation(SWX_OP_RUN, "echo kept $? $n\n");
    submit(s, &first);
    submit(s, &second);
    submit(s, &dropped);
    swx_session_cancel(s, &dropped);
    swx_session_cancel(s, &dropped);
    EXPECT(&dropped, SWX_END_CANCELLED, 0, "");
    submit(s, &kept);
    CHECK(!swx_session_look(s).idle);
    rest(s, 20 * MS);
    CHECK(swx_session_type(s, (const uint8_t *)"\n", 1, now()) == SWX_OK);
    wait_for(s, &kept);
    EXPECT(&first, SWX_END_DONE, 0, NULL);
    EXPECT(&second, SWX_END_DONE, 2, "second\n");
    EXPECT(&kept, SWX_END_DONE, 0, "kept 2 2\n");
    CHECK(swx_session_look(s).idle && swx_session_look(s).questions == 0);
    close_session(s);
}

/* At the prompt bytes would be a command of nobody.  What is typed ahead belongs to what runs.  A closed session takes
 * nothing. */
static void test_typed_ahead(void)
{
    swx_session *s = open_session(1 << 20);
    CHECK(swx_session_type(s, (const uint8_t *)"x\n", 2, now()) == SWX_EBUSY);
    expect_run(s, "echo $BASH_VERSION | grep -c x\n", 1, "0\n");
    swx_op op = operation(SWX_OP_RUN, "sleep 1; echo first\n");
    submit(s, &op);
    rest(s, 30 * MS);
    CHECK(swx_session_type(s, (const uint8_t *)"echo second; (exit 6)\n", 22, now()) == SWX_OK);
    AWAIT(s, &op, SWX_END_DONE, 6, "first\nsecond\n");
    expect_run(s, "echo $?\n", 0, "6\n");
    CHECK(swx_session_look(s).questions == 0);
    op = operation(SWX_OP_CLOSE, "");
    COMPLETE(s, &op, SWX_END_DONE, 0, "");
    CHECK(swx_session_type(s, (const uint8_t *)"x", 1, now()) == SWX_ECLOSED);
    swx_session_free(s);
}

/* A program leaves the rest of a long line to the shell, and its end is read before any deadline: no other command gets
 * that rest. */
static void test_the_rest_of_a_long_line_is_noticed_at_once(void)
{
    swx_match *ready = pattern("ready");
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "sh -c 'printf ready; head -c 10; echo'\n");
    op.match = ready;
    COMPLETE(s, &op, SWX_END_MATCHED, 0, "");
    char *much = malloc(9002);
    CHECK(much);
    memset(much, 'z', 9000);
    memcpy(much + 9000, "\n", 2);
    op = operation(SWX_OP_LINE, much);
    submit(s, &op);
    for (int64_t limit = now() + PATIENCE; op.end == SWX_END_NONE; usleep(1000)) {
        CHECK(now() < limit);
        swx_session_writable(s);
        swx_session_readable(s, now());
    }
    EXPECT(&op, SWX_END_LOST, 0, "zzzzzzzzzz\n");
    free(much);
    close_session(s);
    swx_match_free(ready);
}

static void test_queries(void)
{
    swx_session *s = open_session(1 << 20);
    expect_run(s,
               "ask() { local old=$(stty -g) x; stty raw -echo; printf \"$1\"; IFS= read -r -d \"$2\" -t 5 x; stty "
               "$old; printf '%q\\n' \"$x\"; }\n",
               0, "");
    expect_run(s, "ask '\\e[5n' n\n", 0, "\033[5n$'\\E[0'\n");
    expect_run(s, "ask 'a\\e[31mb\\e[c' c\n", 0, "a\033[31mb\033[c$'\\E[?1;2'\n");
    expect_run(s,
               "old=$(stty -g); stty raw; printf '\\e['; sleep 0.02; printf 6; sleep 0.02; printf n; IFS= read -r -d R "
               "-t 5 x; stty $old; printf '%q\\n' \"$x\"\n",
               0, "\033[6n$'\\E[1;1'\n");
    close_session(s);
}

/* What a thousand operations cost that begin to wait, in nanoseconds of this thread's. */
static int64_t cost_of_waiting(swx_session *s, swx_op *ops, int count)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (int i = 0; i < count; i++) {
        ops[i] = operation(SWX_OP_RUN, "true\n");
        ops[i].deadline = now() + PATIENCE;
        submit(s, &ops[i]);
        CHECK(swx_session_deadline(s) < SWX_NEVER);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (end.tv_sec - begin.tv_sec) * INT64_C(1000000000) + end.tv_nsec - begin.tv_nsec;
}

static void test_many_wait_at_the_cost_of_one(void)
{
    enum { PART = 1000, PARTS = 30 };
    static swx_op ops[PARTS * PART];
    swx_session *s = open_session(1 << 20);
    swx_op runs = operation(SWX_OP_RUN, "read x\n");
    submit(s, &runs);
    int64_t first = cost_of_waiting(s, ops, PART), last = 0;
    for (int i = 1; i < PARTS; i++) {
        last = cost_of_waiting(s, ops + i * PART, PART);
    }
    CHECK(last < 5 * first + MS);
    close_session(s);
    CHECK(ops[0].end == SWX_END_CLOSED && ops[PARTS * PART - 1].end == SWX_END_CLOSED);
}

/* Before the shell is there, and while it reads its startup: it must not be the one that is interrupted. */
static void test_interrupt_at_the_start(void)
{
    for (int delay = 0; delay < 3; delay++) {
        swx_session_config config = configuration(1 << 20);
        swx_session *s;
        CHECK(swx_session_new(&s, &config, now(), NULL) == SWX_OK);
        swx_op start = operation(SWX_OP_START, ":");
        rest(s, delay * MS);
        if (delay) {
            submit(s, &start);
        }
        CHECK(interrupt(s) == 0);
        if (delay) {
            AWAIT(s, &start, SWX_END_DONE, 0, "");
        }
        expect_run(s, "echo lives\n", 0, "lives\n");
        close_session(s);
    }
}

/* Freed without a close, while a command runs. */
static void test_free(void)
{
    size_t before = open_descriptors();
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "sleep 1000\n");
    submit(s, &op);
    swx_session_free(s);
    CHECK(op.end == SWX_END_NONE && open_descriptors() == before);
    check_no_children();
    swx_session_free(NULL);
}

static void test_startup_failures(void)
{
    size_t before = open_descriptors();
    swx_session_config config = configuration(1 << 20);
    swx_session *s;
    swx_error err;
    config.program = "/nonexistent/bash";
    CHECK(swx_session_new(&s, &config, now(), &err) == SWX_ESYS && !s && err.sys_errno == ENOENT && err.call);
    config.program = "/bin/bash";
    config.directory = "/nonexistent";
    CHECK(swx_session_new(&s, &config, now(), &err) == SWX_ESYS && !s && err.sys_errno == ENOENT);
    CHECK(open_descriptors() == before);
    check_no_children();
}

/* Whoever waits is begun when what it waited for goes away, and not only when something new is asked. */
static void test_the_queue_goes_on(void)
{
    swx_match *match = pattern("ready");
    swx_session *s = open_session(1 << 20);
    swx_op held = operation(SWX_OP_RUN, ""), op = operation(SWX_OP_RUN, "echo after\n");
    held.held = true;
    held.deadline = now() + 20 * MS;
    submit(s, &held);
    complete(s, &op);
    EXPECT(&held, SWX_END_TIMEOUT, 0, "");
    EXPECT(&op, SWX_END_DONE, 0, "after\n");
    for (int how = 0; how < 4; how++) {
        const char *text =
            how == 1 ? "printf ready; read x; echo got $x; (exit 4)\n" : "read x; echo got $x; (exit 4)\n";
        swx_op first = operation(SWX_OP_RUN, text), second = operation(SWX_OP_RUN, "echo never\n");
        swx_op line = operation(SWX_OP_LINE, "text\n");
        first.deadline = how == 0 || how == 3 ? now() + 50 * MS : SWX_NEVER;
        first.match = how == 1 ? match : NULL;
        submit(s, &first);
        if (how == 3) {
            submit(s, &second);
        }
        submit(s, &line);
        if (how == 2) {
            rest(s, 50 * MS);
            swx_session_cancel(s, &first);
        } else if (how == 3) {
            wait_for(s, &first);
            swx_session_cancel(s, &second);
            EXPECT(&second, SWX_END_CANCELLED, 0, "");
        }
        wait_for(s, &line);
        EXPECT(&first, how == 1 ? SWX_END_MATCHED : how == 2 ? SWX_END_CANCELLED : SWX_END_TIMEOUT, 0, NULL);
        EXPECT(&line, SWX_END_DONE, 4, "got text\n");
    }
    close_session(s);
    swx_match_free(match);
}

/* A job in the background that writes without end does not keep commands from their end. */
static void test_endless_output(void)
{
    swx_session *s = open_session(1 << 16);
    expect_run(s, "set +m; yes & true\n", 0, NULL);
    for (int i = 0; i < 3; i++) {
        swx_op op = operation(SWX_OP_RUN, "(exit 5)\n");
        op.deadline = now() + PATIENCE / 2;
        complete(s, &op);
        CHECK(op.end == SWX_END_DONE && op.code == 5);
        swx_buf_free(&op.output);
    }
    close_session(s);
}

/* A long command in raw mode: nothing else gets between its bytes. */
static void test_nothing_is_typed_into_a_command(void)
{
    enum { LONG = 200000 };
    char *text = malloc(LONG + 100);
    CHECK(text);
    memcpy(text, "{\n: ", 4);
    memset(text + 4, 'y', LONG);
    strcpy(text + 4 + LONG, "\nread x; echo got $x; (exit 6)\n}\n");
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, text), line = operation(SWX_OP_LINE, "one\n");
    op.raw = true;
    op.deadline = now();
    submit(s, &op);
    CHECK(swx_session_type(s, (const uint8_t *)"two\n", 4, now()) == SWX_EBUSY);
    complete(s, &line);
    EXPECT(&op, SWX_END_TIMEOUT, 0, "");
    EXPECT(&line, SWX_END_DONE, 6, "got one\n");
    close_session(s);
    free(text);
}

/* The output of an interrupt that waits for a pattern ends where the match starts, also when another operation took the
 * output before. */
static void test_pattern_of_an_interrupt(void)
{
    swx_match *match = pattern("ready");
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(
        SWX_OP_RUN,
        "bash -c 'trap \"sleep 1; echo abc ready; sleep 100\" INT; echo 0123456789; while :; do sleep 0.01; done'\n");
    swx_op stop = operation(SWX_OP_INTERRUPT, "");
    submit(s, &op);
    wait_for_output(s, &op, 11);
    stop.match = match;
    stop.step = PATIENCE;
    submit(s, &stop);
    op.deadline = now();
    wait_for(s, &stop);
    EXPECT(&op, SWX_END_TIMEOUT, 0, NULL);
    CHECK(stop.hit.start == stop.output.total);
    EXPECT(&stop, SWX_END_MATCHED, 0, "abc ");
    close_session(s);
    swx_match_free(match);
}

/* Bytes that looked like the beginning of a mark, and then the shell was gone. */
static void test_last_bytes(void)
{
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "printf 'last\\e]77'; kill -9 $$\n");
    COMPLETE(s, &op, SWX_END_DIED, 128 + SIGKILL, "last\033]77");
    close_session(s);
}

/* Nothing is left to do for a shell that has gone, also if a part of a long line was still to be typed. */
static void test_the_rest_of_a_long_line_ends_with_the_shell(void)
{
    static uint8_t much[10000];
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "sleep 1000\n");
    submit(s, &op);
    memset(much, 'z', sizeof(much));
    CHECK(swx_session_type(s, much, sizeof(much), now()) == SWX_OK);
    CHECK(kill(swx_session_pid(s), SIGKILL) == 0);
    AWAIT(s, &op, SWX_END_DIED, 128 + SIGKILL, NULL);
    CHECK(swx_session_deadline(s) == SWX_NEVER && !swx_session_wants_write(s));
    close_session(s);
}

/* PS0 is gone, so that nothing says where the command began: what the limit dropped meanwhile is still counted. */
static void test_much_output_without_a_start(void)
{
    swx_match *match = pattern("never to be seen");
    for (int with = 0; with < 2; with++) {
        swx_session *s = open_session(1000);
        expect_run(s, "trap 'PS0=' USR1; set +m; { sleep 0.1; kill -USR1 $$; } & true\n", 0, NULL);
        rest(s, 300 * MS); /* at the prompt, behind the mark that says that all is well */
        swx_op op = operation(SWX_OP_RUN, "seq 2000; sleep 0.3; echo end\n");
        op.match = with ? match : NULL;
        complete(s, &op);
        CHECK(op.end == SWX_END_DONE && op.output.total == 8893 + 4);
        swx_buf_free(&op.output);
        close_session(s);
    }
    swx_match_free(match);
}

#ifdef SWX_ALLOC_TEST
/* One session and one command while allocation number i fails.  True: nothing failed. */
static bool session_with_failure(unsigned long i, int forever, const char *line)
{
    swx_session_config config = configuration(1 << 20);
    swx_session *s;
    swx_error err;
    bool good = false;
    swx_op start = operation(SWX_OP_START, ":"), op = operation(SWX_OP_RUN, line);
    swx_alloc_fail_at(i, forever);
    swx_status status = swx_session_new(&s, &config, now(), &err);
    if (status == SWX_OK) {
        complete(s, &start);
        complete(s, &op);
        /* A wrong exit code, or a part of the output as if it were all, is never told. */
        if (op.end == SWX_END_DONE && (op.code != 3 || op.output.size != 108894)) {
            fprintf(stderr, "allocation %lu: start ended %d, code %d, %zu bytes\n", i, (int)start.end, op.code,
                    op.output.size);
            exit(1);
        }
        good = start.end == SWX_END_DONE && op.end == SWX_END_DONE && swx_alloc_count() < i;
    } else {
        CHECK(status == SWX_ENOMEM && err.status == SWX_ENOMEM && !s);
    }
    swx_alloc_fail_at(0, 0);
    swx_buf_free(&start.output);
    swx_buf_free(&op.output);
    if (s) {
        /* with memory it works as ever, or says that it does not */
        op = operation(SWX_OP_RUN, "echo again; (exit 4)\n");
        complete(s, &op);
        if (op.end != SWX_END_LOST) {
            EXPECT(&op, SWX_END_DONE, 4, "again\n");
        }
        swx_buf_free(&op.output);
        close_session(s);
    }
    return good;
}

static void count_end(swx_op *op) { ++*(int *)op->owner; }
#endif

/* Patterns while allocation number i fails: the operation ends once, and never without a match that was there. */
static void test_no_memory_for_patterns(void)
{
#ifdef SWX_ALLOC_TEST
    bool good = false;
    for (unsigned long i = 1; !good; i++) {
        int ends = 0;
        swx_match *match = pattern("ready");
        swx_session *s = open_session(1 << 20);
        swx_op op = operation(SWX_OP_RUN, "printf 'some text ready and more'; (exit 3)\n");
        op.match = match;
        op.done = count_end;
        op.owner = &ends;
        swx_alloc_fail_at(i, 0);
        complete(s, &op);
        rest(s, 5 * MS);
        good = swx_alloc_count() < i;
        swx_alloc_fail_at(0, 0);
        CHECK(ends == 1 && i < 1000);
        CHECK(op.end == SWX_END_MATCHED || (!good && (op.end == SWX_END_MEMORY || op.end == SWX_END_LOST)));
        EXPECT(&op, op.end, op.code, op.end == SWX_END_MATCHED ? "some text " : NULL);
        close_session(s);
        swx_match_free(match);
    }
#endif
}

static void test_no_memory(void)
{
#ifdef SWX_ALLOC_TEST
    long live = swx_alloc_live();
    size_t before = open_descriptors();
    static const char *const lines[] = { "seq 20000; (exit 3)\n", "PS1=; seq 20000; (exit 3)\n" };
    for (size_t which = 0; which < SWX_COUNT(lines); which++) {
        for (int forever = 0; forever < 2; forever++) {
            for (unsigned long i = 1; !session_with_failure(i, forever, lines[which]); i++) {
                CHECK(swx_alloc_live() == live && open_descriptors() == before);
                check_no_children();
                CHECK(i < 1000);
            }
        }
    }
    CHECK(swx_alloc_live() == live);
#endif
}

/* The shell has gone on, and the mark is in the terminal: no prompt of the user's before it is output. */
static void test_a_start_mark_that_was_not_read_yet(void)
{
    swx_session *s = open_session(1 << 20);
    expect_run(s, "PS2='> '\n", 0, "");
    swx_op op = operation(SWX_OP_RUN, "for w in a b; do\n  echo $w\ndone; sleep 0.2\n");
    submit(s, &op);
    for (int64_t until = now() + 100 * MS; now() < until;) {
        usleep(1000);
        swx_session_due(s, now());
    }
    AWAIT(s, &op, SWX_END_DONE, 0, "a\nb\n");
    close_session(s);
}

/* A command ends although its helper never reads and a job of the background never stops printing. */
static void test_noise_beside_a_helper(void)
{
    static const char *const helpers[] = { "exec > >(sleep 1000)\n", "exec > >(cat)\n" };
    static const char *const noises[] = { "(while :; do echo x >&2; sleep 0.3; done) &\n",
                                          "(while :; do echo x >&2; sleep 0.002; done) &\n" };
    for (size_t i = 0; i < SWX_COUNT(helpers); i++) {
        swx_session *s = open_session(1 << 20);
        const char *lines[] = { helpers[i], "echo unread\n", noises[i], "true\n" };
        for (size_t j = 0; j < SWX_COUNT(lines); j++) {
            swx_op op = operation(SWX_OP_RUN, lines[j]);
            op.hints = j ? 0 : SWX_HINT_SETTLE;
            op.deadline = now() + 8000 * MS;
            complete(s, &op);
            CHECK(op.end == SWX_END_DONE && op.code == 0);
            swx_buf_free(&op.output);
        }
        close_session(s);
    }
}

TEST_MAIN(test_questions_about_prompts, test_prompts_without_the_kernel, test_queue, test_typed_ahead,
          test_the_rest_of_a_long_line_is_noticed_at_once, test_queries, test_many_wait_at_the_cost_of_one,
          test_interrupt_at_the_start, test_free, test_startup_failures, test_the_queue_goes_on, test_endless_output,
          test_nothing_is_typed_into_a_command, test_no_memory_for_patterns, test_pattern_of_an_interrupt,
          test_last_bytes, test_the_rest_of_a_long_line_ends_with_the_shell, test_a_start_mark_that_was_not_read_yet,
          test_much_output_without_a_start, test_noise_beside_a_helper, test_no_memory)
