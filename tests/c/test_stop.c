/* Interrupts of loops whose programs come and go: an interrupt that meets one that has just ended has met nobody. */
#include "turns.h"

enum { ROUNDS = 12 }; /* of each loop */
static unsigned deaths, seed = 12345;

/* Interrupts it as often as asked, each time in another moment. One in some 13,000 ends bash itself, which must be
 * said. */
static void interrupt_loop(const char *line)
{
    swx_session *s = open_session(1 << 20);
    for (unsigned i = 0; i < ROUNDS; i++) {
        swx_op op = operation(SWX_OP_RUN, line), stop = operation(SWX_OP_INTERRUPT, "");
        submit(s, &op);
        rest(s, 3 * MS + rand_r(&seed) % (20 * MS));
        complete(s, &stop);
        bool died = op.end == SWX_END_DIED && !deaths++;
        CHECK(died || (stop.end == SWX_END_DONE && op.end == SWX_END_DONE && op.code == 130));
        swx_buf_free(&stop.output);
        swx_buf_free(&op.output);
        if (died) {
            fprintf(stderr, "%sround %u: it has ended bash\n", line, i);
            close_session(s);
            s = open_session(1 << 20);
        } else {
            expect_run(s, "echo $?\n", 0, "130\n");
        }
    }
    close_session(s);
}

static void test_loops_of_programs(void)
{
    static const char *const lines[] = {
        "while :; do /bin/true; done\n",
        "while :; do (:); done\n",
        "while :; do sleep 0.001; done\n",
        "while :; do /bin/true | /bin/true; done\n",
        "while :; do (:) | (:) | cat; done\n",
        "while :; do bash -c :; done\n",
        "while :; do x=$(/bin/true); done\n",
        "while :; do x=$(:); done\n",
        "while :; do for i in {1..2000}; do :; done; /bin/true; done\n",
        "while :; do :; done\n",
    };
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        interrupt_loop(lines[i]);
    }
}

/* A program that takes its time to end gets one SIGINT in an attempt, and so does each that comes after it.  It waits
 * for that without a child: bash loses a SIGINT that comes while a child exits. */
static void test_handlers(void)
{
    static const char *const lines[] = {
        "bash -c 'n=0; trap \"n=\\$((n+1))\" INT; echo up; while ((n < 1)); do :; done; sleep 0.3; exit $n'\n",
        "true | bash -c 'n=0; trap \"n=\\$((n+1))\" INT; echo up; while ((n < 1)); do :; done; sleep 0.3; exit $n'\n",
    };
    swx_session *s = open_session(1 << 20);
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        swx_op op = operation(SWX_OP_RUN, lines[i]), stop = operation(SWX_OP_INTERRUPT, "");
        submit(s, &op);
        wait_for_output(s, &op, 3);
        /* the leader of the pipeline has become a program, too: what was none yet is interrupted twice */
        rest(s, 200 * MS);
        stop.step = 15000 * MS;
        stop.tries = 1;
        COMPLETE(s, &stop, SWX_END_DONE, 1, "");
        EXPECT(&op, SWX_END_DONE, 1, NULL);
    }
    close_session(s);
}

/* None of them dies of SIGINT, and killing one does not end the loop. */
static void test_loops_that_ignore_it(void)
{
    swx_session *s = open_session(1 << 20);
    for (unsigned i = 0; i < 4; i++) {
        swx_op op = operation(SWX_OP_RUN, "while :; do bash -c 'trap \"\" INT; sleep 0.5'; done\n");
        swx_op stop = operation(SWX_OP_INTERRUPT, "");
        stop.step = PATIENCE; /* as many of them are killed as it takes, however long each of them takes to come */
        stop.tries = 0;
        submit(s, &op);
        rest(s, 50 * MS);
        COMPLETE(s, &stop, SWX_END_DONE, 130, NULL);
        EXPECT(&op, SWX_END_DONE, 130, NULL);
        expect_run(s, "echo lives\n", 0, "lives\n");
    }
    close_session(s);
}

/* The shell is asked before that command is typed, and the interrupt comes meanwhile. */
static void test_a_command_that_is_not_typed_yet(void)
{
    swx_session *s = open_configured(1 << 20, true);
    swx_op op = operation(SWX_OP_RUN, "exec 2>/dev/null; sleep 5; echo ran\n"), stop = operation(SWX_OP_INTERRUPT, "");
    op.hints = SWX_HINT_STDERR | SWX_HINT_HIDES;
    submit(s, &op);
    CHECK(swx_session_look(s).questions == 1 && op.end == SWX_END_NONE);
    COMPLETE(s, &stop, SWX_END_DONE, 130, "");
    EXPECT(&op, SWX_END_DONE, 130, "");
    close_session(s);
}

TEST_MAIN(test_loops_of_programs, test_handlers, test_loops_that_ignore_it, test_a_command_that_is_not_typed_yet)
