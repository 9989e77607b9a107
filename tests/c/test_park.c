/* A parked session: the descriptors it keeps, what is right behind it, and what may happen during it. */
#include <fcntl.h>

#include "client.h"

/* Tells it that the time has come, so that nobody has to wait for it. */
static void park(swx_session *s)
{
    CHECK(swx_session_look(s).idle && swx_session_deadline(s) < now() + 1001 * MS);
    for (int64_t due; (due = swx_session_deadline(s)) != SWX_NEVER;) {
        swx_session_due(s, due);
    }
}

static void check_parked(swx_session *s, size_t before, size_t kept)
{
    park(s);
    CHECK(open_descriptors() == before + kept);
}

static unsigned turns_in(swx_session *s, int64_t length)
{
    unsigned count = 0;
    for (int64_t until = now() + length; now() < until; count++) {
        turn(s, until);
    }
    return count;
}

/* Until so many bytes more came than at first, that nobody waited for.  Returns the turns that it took. */
static unsigned hear(swx_session *s, uint64_t bytes)
{
    unsigned count = 0;
    for (int64_t limit = now() + PATIENCE; swx_session_look(s).late < bytes; count++) {
        CHECK(now() < limit);
        turn(s, limit);
    }
    CHECK(swx_session_look(s).late == bytes);
    return count;
}

/* Where the kernel does not tell there is one less. */
static void test_descriptors(void)
{
    close_session(open_session(1 << 20)); /* what the process keeps for all of them is there now */
    size_t before = open_descriptors();
    swx_session *s = open_configured(1 << 20, true);
    CHECK(open_descriptors() == before + 3);
    check_parked(s, before, 2);
    expect_run(s, "sleep 0.01; echo hi; (exit 3)\n", 3, "hi\n");
    CHECK(open_descriptors() == before + 3 && swx_session_look(s).questions == 0);
    check_parked(s, before, 2);
    close_session(s);
    CHECK(open_descriptors() == before);
}

/* It does not go to rest behind each command, nor while one runs or is held; the time for it is not set with each. */
static void test_when(void)
{
    size_t before = open_descriptors();
    swx_session *s = open_session(1 << 20);
    int64_t due = swx_session_deadline(s);
    CHECK(due > now());
    rest(s, 20 * MS);
    expect_run(s, "true\n", 0, "");
    CHECK(swx_session_deadline(s) == due);
    swx_session_due(s, due); /* there was a command in the last second */
    int64_t next = swx_session_deadline(s);
    CHECK(next >= due + 19 * MS && next <= now() + 1000 * MS && open_descriptors() == before + 4);
    swx_op held = operation(SWX_OP_RUN, "echo held\n"), asks = operation(SWX_OP_LINE, "");
    held.held = true;
    submit(s, &held);
    CHECK(swx_session_deadline(s) == SWX_NEVER);
    swx_session_due(s, next);
    CHECK(open_descriptors() == before + 4);
    swx_session_release(s, &held, now());
    AWAIT(s, &held, SWX_END_DONE, 0, "held\n");
    check_parked(s, before, 2);
    submit(s, &asks); /* how the last one ended is known */
    EXPECT(&asks, SWX_END_DONE, 0, "");
    held = operation(SWX_OP_RUN, "echo held\n"); /* a place in the queue takes no descriptors */
    held.held = true;
    swx_op other = held, stop = operation(SWX_OP_INTERRUPT, "");
    submit(s, &held);
    CHECK(open_descriptors() == before + 2);
    submit(s, &other);
    submit(s, &stop); /* it is meant for the first alone */
    swx_session_cancel(s, &held);
    EXPECT(&stop, SWX_END_DONE, 0, NULL);
    swx_session_release(s, &other, now());
    AWAIT(s, &other, SWX_END_DONE, 0, "held\n");
    swx_op op = operation(SWX_OP_RUN, "echo up; read x\n");
    submit(s, &op);
    wait_for_output(s, &op, 3);
    swx_session_due(s, now() + 5000 * MS);
    CHECK(open_descriptors() == before + 4);
    CHECK(swx_session_type(s, (const uint8_t *)"\n", 1, now()) == SWX_OK);
    AWAIT(s, &op, SWX_END_DONE, 0, NULL);
    close_session(s);
}

/* What goes on in the background is heard during a rest, and is nobody's output; the jobs that end are reported to
 * nobody. */
static void test_jobs(void)
{
    size_t before = open_descriptors();
    swx_session *s = open_session(1 << 20);
    uint64_t late = swx_session_look(s).late;
    expect_run(s, "(sleep 1; echo late; sleep 0.05; seq 20000) & sleep 0.1 &\n", 0, NULL);
    park(s);
    CHECK(open_descriptors() == before + 2);
    CHECK(hear(s, late + 5 + 108894) < 1000);
    rest(s, 200 * MS);
    CHECK(open_descriptors() == before + 2); /* that is no reason to wake */
    expect_run(s, "echo x\n", 0, "x\n");
    expect_run(s, "jobs\n", 0, "");
    close_session(s);
}

/* Told as ever, without delay, and nothing is reported again and again.  Bytes written before are not lost. */
static void test_death(void)
{
    size_t before = open_descriptors();
    for (int held = 0; held < 2; held++) { /* a process that was left behind has the terminal open for a while */
        swx_session *s = open_session(1 << 20);
        uint64_t late = swx_session_look(s).late;
        expect_run(s, held ? "trap '' HUP; (sleep 1; seq 20000; sleep 0.1) & disown\n" : ":\n", 0, NULL);
        check_parked(s, before, 2);
        CHECK(kill(swx_session_pid(s), SIGKILL) == 0);
        TURN_UNTIL(s, swx_session_look(s).dead)
        swx_op op = operation(SWX_OP_RUN, "echo\n"), line = operation(SWX_OP_LINE, "");
        submit(s, &op);
        CHECK(op.signal == SIGKILL && !op.typed_out);
        EXPECT(&op, SWX_END_DIED, 128 + SIGKILL, "");
        submit(s, &line);
        EXPECT(&line, SWX_END_DIED, 128 + SIGKILL, "");
        CHECK(hear(s, late + (held ? 108894 : 0)) < 1000);
        CHECK(turns_in(s, 300 * MS) < 20 && turns_in(s, 50 * MS) < 20);
        CHECK(open_descriptors() <= before + 2);
        close_session(s);
        CHECK(open_descriptors() == before);
    }
}

/* The shell has ended, and whoever asks comes before the loop has noticed. */
static void test_death_that_nobody_saw(void)
{
    swx_session *s = open_session(1 << 20);
    expect_run(s, "trap 'echo bye' EXIT\n", 0, "");
    park(s);
    CHECK(kill(swx_session_pid(s), SIGHUP) == 0);
    siginfo_t info;
    CHECK(waitid(P_PID, (id_t)swx_session_pid(s), &info, WEXITED | WNOWAIT) == 0);
    take_descriptors_away(0);
    swx_op op = operation(SWX_OP_RUN, "echo\n"), next = operation(SWX_OP_RUN, "echo\n");
    submit(s, &op);
    submit(s, &next);
    give_descriptors_back();
    EXPECT(&op, SWX_END_DIED, 128 + SIGHUP, "");
    EXPECT(&next, SWX_END_DIED, 128 + SIGHUP, "");
    CHECK(turns_in(s, 20 * MS) < 20);
    close_session(s);
}

/* With none left, with one (for the terminal, and none for the kernel's file), and with enough. */
static void test_without_descriptors(void)
{
    size_t before = open_descriptors();
    swx_session *s = open_session(1 << 20);
    expect_run(s, "x=5; (exit 4)\n", 4, "");
    check_parked(s, before, 2);
    for (rlim_t room = 0; room < 2; room++) {
        swx_op op = operation(SWX_OP_RUN, "echo\n"), line = operation(SWX_OP_LINE, "echo\n"),
               asks = operation(SWX_OP_LINE, "");
        swx_op stop = operation(SWX_OP_INTERRUPT, "");
        take_descriptors_away(room);
        submit(s, &op);
        submit(s, &line);
        submit(s, &asks);
        submit(s, &stop);
        give_descriptors_back();
        CHECK(op.error.status == SWX_ESYS && op.error.sys_errno == EMFILE && !op.typed_out);
        CHECK(strcmp(op.error.call, room ? "open(/proc/PID/syscall)" : "ioctl(TIOCGPTPEER)") == 0);
        EXPECT(&op, SWX_END_SYSTEM, 0, "");
        EXPECT(&line, SWX_END_SYSTEM, 0, "");
        EXPECT(&asks, SWX_END_DONE, 4, "");
        EXPECT(&stop, SWX_END_DONE, 0, "");
        CHECK(swx_session_look(s).idle && open_descriptors() == before + 2 && swx_session_deadline(s) == SWX_NEVER);
    }
    swx_op held = operation(SWX_OP_RUN, "echo\n"), next = operation(SWX_OP_RUN, "echo next\n");
    held.held = true;
    submit(s, &held);
    submit(s, &next);
    take_descriptors_away(0);
    swx_session_release(s, &held, now());
    give_descriptors_back();
    EXPECT(&held, SWX_END_SYSTEM, 0, "");
    EXPECT(&next, SWX_END_SYSTEM, 0, "");
    expect_run(s, "echo $? $x\n", 0, "4 5\n");
    check_parked(s, before, 2);
    close_session(s);
    CHECK(open_descriptors() == before);
}

/* Everything ends, what ignores that too, and the shell gets its time. */
static void test_closing_without_descriptors(void)
{
    static const char *const lines[] = { "trap '' HUP; sleep 1000 & setsid sleep 1000 &\n",
                                         "trap 'sleep 0.1; echo saved >&9' EXIT\n" };
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        size_t before = open_descriptors();
        int alive[2];
        char line[64], said[16] = { 0 };
        CHECK(pipe2(alive, O_CLOEXEC) == 0);
        swx_session *s = open_session(1 << 20);
        snprintf(line, sizeof(line), "exec 9>/proc/%d/fd/%d; set +m\n", (int)getpid(), alive[1]);
        expect_run(s, line, 0, "");
        expect_run(s, lines[i], 0, NULL);
        close(alive[1]);
        park(s);
        int filled[256], count = 0, lowest = dup(0), highest = lowest;
        for (int fd = 0; fd < 256; fd++) { /* those of the session itself are to be of use when they are given back */
            highest = fcntl(fd, F_GETFD) >= 0 ? fd : highest;
        }
        close(lowest);
        take_descriptors_away((rlim_t)(highest + 1 - lowest));
        while (count < 256 && (filled[count] = dup(0)) >= 0) {
            count++;
        }
        CHECK(count < 256);
        swx_op op = operation(SWX_OP_CLOSE, "");
        complete(s, &op);
        while (count) {
            close(filled[--count]);
        }
        give_descriptors_back();
        EXPECT(&op, SWX_END_DONE, 0, "");
        struct pollfd gone = { .fd = alive[0], .events = POLLIN };
        CHECK(poll(&gone, 1, 60000) == 1);
        CHECK(read(alive[0], said, sizeof(said)) == (i ? 6 : 0) && strcmp(said, i ? "saved\n" : "") == 0);
        CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
        close(alive[0]);
        swx_session_free(s);
        CHECK(open_descriptors() == before);
    }
}

/* Nobody else may open it: it stays open. */
static void test_exclusive(void)
{
    size_t before = open_descriptors();
    swx_session *s = open_session(1 << 20);
    expect_run(s, "perl -e 'ioctl(STDIN, 0x540C, 0) or die' || python3 -c 'import fcntl; fcntl.ioctl(0, 0x540C)'\n", 0,
               "");
    check_parked(s, before, 4);
    expect_run(s, "echo lives\n", 0, "lives\n");
    check_parked(s, before, 4);
    close_session(s);
}

/* ---- over a client ---- */

static char terminal[64];

/* Lets go of the terminal for a while. */
static void let_go(int number)
{
    (void)number;
    for (int fd = 0; fd < 3; fd++) {
        close(fd);
    }
    usleep(150 * 1000);
    for (int fd = 0; fd < 3; fd++) {
        if (open(terminal, O_RDWR | O_NOCTTY) != fd) {
            _exit(124);
        }
    }
}

static void test_client(void)
{
    size_t before = open_descriptors();
    swx_session *s = open_client();
    CHECK(open_descriptors() == before + 3);
    check_parked(s, before, 2);
    expect_run(s, "echo hi; (exit 3)\n", 3, "hi\n");
    check_parked(s, before, 2);
    swx_op op = operation(SWX_OP_RUN, "echo $?; stty -echo\n");
    op.hints = SWX_SCAN_STTY;
    take_descriptors_away(0);
    submit(s, &op);
    give_descriptors_back();
    EXPECT(&op, SWX_END_SYSTEM, 0, "");
    op = operation(SWX_OP_RUN, "echo $?; PS1=x\n"); /* for which PROMPT_COMMAND is armed first */
    op.hints = SWX_HINT_PROMPT | SWX_SCAN_STTY;
    COMPLETE(s, &op, SWX_END_DONE, 0, "3\n");
    check_parked(s, before, 2);
    expect_run(s, "echo $?\n", 0, "0\n");
    check_parked(s, before, 2);
    close_session(s);
    CHECK(open_descriptors() == before);
}

/* Nobody has the terminal open for a while: that is seen, ended, and makes nobody busy. */
static void test_hangup(void)
{
    size_t before = open_descriptors();
    char *letting_go[SWX_COUNT(client_argv)];
    memcpy(letting_go, client_argv, sizeof(client_argv));
    letting_go[1] = (char[]){ "let-go" };
    swx_session *s = open_behind(letting_go, ":");
    check_parked(s, before, 2);
    CHECK(kill(swx_session_pid(s), SIGUSR1) == 0);
    TURN_UNTIL(s, open_descriptors() == before + 3)
    CHECK(turns_in(s, 100 * MS) < 20);
    rest(s, 100 * MS);
    expect_run(s, "echo lives; (exit 3)\n", 3, "lives\n");
    check_parked(s, before, 2);
    take_descriptors_away(0);
    CHECK(kill(swx_session_pid(s), SIGUSR1) == 0);
    TURN_UNTIL(s, !swx_session_wants_read(s))
    CHECK(turns_in(s, 100 * MS) < 20 && swx_session_look(s).idle);
    rest(s, 100 * MS);
    give_descriptors_back();
    expect_run(s, "echo $?\n", 0, "3\n");
    CHECK(swx_session_wants_read(s));
    check_parked(s, before, 2);
    CHECK(kill(swx_session_pid(s), SIGKILL) == 0);
    take_descriptors_away(0);
    TURN_UNTIL(s, swx_session_look(s).dead)
    CHECK(turns_in(s, 100 * MS) < 20);
    give_descriptors_back();
    swx_op op = operation(SWX_OP_RUN, "echo\n");
    submit(s, &op);
    EXPECT(&op, SWX_END_DIED, 128 + SIGKILL, "");
    close_session(s);
    CHECK(open_descriptors() == before);
}

static const swx_test tests[] = { test_descriptors,
                                  test_when,
                                  test_jobs,
                                  test_death,
                                  test_death_that_nobody_saw,
                                  test_without_descriptors,
                                  test_closing_without_descriptors,
                                  test_exclusive,
                                  test_client,
                                  test_hangup };

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "let-go") == 0) {
        sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = let_go }, NULL);
        return ttyname_r(0, terminal, sizeof(terminal)) == 0 ? run_client(argv + 2) : 125;
    }
    return run_or_client(tests, SWX_COUNT(tests), argc, argv);
}
