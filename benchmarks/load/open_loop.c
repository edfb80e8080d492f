/* Sends HTTP requests at given times, whatever the server does meanwhile, and notes their answers.
 *
 *     open_loop HOST PORT <load >records
 *
 * The load: how many messages, how many requests, and how long to wait for answers once the last is
 * sent; then each message (a complete HTTP/1.1 request) as its length and its bytes; then the times
 * of the requests, in order. Request i sends message i modulo their number. The records: a line of
 * connections opened, processor time of sending and receiving, and niceness; then for each request
 * when it was sent, when its answer was complete, and the answer's status, 0 where the request was
 * lost: its connection ended, or nothing came. Numbers of the load end with a newline; times are
 * nanoseconds since the start.
 *
 * "Sent" is when it was given to the kernel, or the connection for it asked for: it judges this
 * program alone. Where a server does not accept, the request waits, and its latency tells.
 *
 * It cannot do TLS, pipelining, interim answers (1xx) or answers without a content-length, such as
 * chunked ones: what cannot be followed is lost at once. 204 and 304 need no length.
 *
 * It is in C because it shares the server's cores: a request costs it two wakes and four calls of
 * the kernel, less than half of the processor time that the same takes in Python. */

#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define MOST_SECONDS (1000000 * SECOND)
/* Servers close what has been idle for a few seconds; a request must not cross that. */
#define MAX_IDLE (2 * SECOND)
#define MAX_HEAD 8192
#define MAX_EVENTS 16 /* few, so that the clock is looked at between them */

typedef struct {
    char *bytes;
    size_t length;
} Message;

typedef struct {
    int64_t intended, sent, answered;
    int status;
} Request;

/* A keep-alive connection with at most one request on its way. */
typedef struct Connection {
    int socket;
    uint32_t watched; /* the events that epoll reports of it */
    Request *request; /* on its way, or NULL */
    const char *unsent;
    size_t unsent_length;
    size_t received, expected; /* bytes of its answer, expected 0 until the head has come */
    int status;
    bool is_last; /* the server will close it after this answer */
    int64_t idle_since;
    struct Connection *older, *newer; /* its neighbours among the idle ones */
    char head[MAX_HEAD];
} Connection;

static Message *messages;
static Request *requests;
static size_t num_messages, num_requests;
static int64_t drain; /* how long to wait for the last answers */

static const struct addrinfo *server;
static int epoll, timer;
static int64_t start;
static Connection *idle; /* the one that was used last */
static size_t connections_opened, waiting;

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory && count) err(1, "%zu times %zu bytes", count, size);
    return memory;
}

static int64_t read_clock(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static int64_t now(void) { return read_clock(CLOCK_MONOTONIC) - start; }

static void wake_at(int64_t time) {
    int64_t at = start + time > 0 ? start + time : 1; /* 0 would be never */
    struct itimerspec when = {.it_value = {at / SECOND, at % SECOND}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL)) err(1, "timerfd_settime");
}

static void watch(Connection *c, uint32_t events) {
    if (events == c->watched) return;
    struct epoll_event event = {.events = events, .data.ptr = c};
    int operation = c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(epoll, operation, c->socket, &event)) err(1, "epoll_ctl");
    c->watched = events;
}

/* Waits for nothing: on a connection that is not made yet, sending has to be tried again. */
static Connection *open_connection(void) {
    Connection *c = allocate(1, sizeof *c);
    c->socket = socket(server->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->socket < 0) err(1, "connection %zu", connections_opened + 1);
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    bool is_begun = !connect(c->socket, server->ai_addr, server->ai_addrlen);
    if (!is_begun && errno != EINPROGRESS && errno != ECONNREFUSED)
        err(1, "connection %zu", connections_opened + 1);
    connections_opened++;
    return c;
}

static void make_idle(Connection *c) {
    c->idle_since = now();
    c->older = idle;
    if (idle) idle->newer = c;
    idle = c;
}

static void take_from_idle(Connection *c) {
    if (idle == c) idle = c->older;
    if (c->newer) c->newer->older = c->older;
    if (c->older) c->older->newer = c->newer;
    c->newer = c->older = NULL;
}

/* What was on its way is lost. */
static void close_connection(Connection *c) {
    if (c->request) waiting--;
    take_from_idle(c);
    close(c->socket);
    free(c);
}

/* Where sending fails, an answer may have come all the same: receiving finds it, or the end. */
static void send_rest(Connection *c) {
    ssize_t sent = send(c->socket, c->unsent, c->unsent_length, MSG_NOSIGNAL);
    bool has_failed = sent < 0 && errno != EAGAIN;
    if (sent > 0) {
        c->unsent += sent;
        c->unsent_length -= (size_t)sent;
    }
    watch(c, c->unsent_length && !has_failed ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* On the connection that was used last, or a new one: all are busy or were idle too long. */
static void send_request(Request *request, const Message *message) {
    request->sent = now();
    Connection *c = idle;
    if (c && request->sent - c->idle_since < MAX_IDLE)
        take_from_idle(c);
    else
        c = open_connection();
    c->request = request;
    c->unsent = message->bytes;
    c->unsent_length = message->length;
    c->received = c->expected = 0;
    waiting++;
    send_rest(c);
}

static size_t head_stored(const Connection *c) {
    return c->received < MAX_HEAD ? c->received : MAX_HEAD;
}

/* What follows "\r\nname:" and spaces, or an empty string. */
static const char *find_header(const char *head, const char *name) {
    const char *at = strcasestr(head, name);
    return at ? at + strlen(name) + strspn(at + strlen(name), " ") : "";
}

/* Notes what the head says, once it has come; false where the answer cannot be followed. */
static bool read_head(Connection *c) {
    char *end = memmem(c->head, head_stored(c), "\r\n\r\n", 4);
    if (!end) return c->received < MAX_HEAD;
    end[2] = '\0'; /* the head is a string now, of lines that each end */
    char version;
    if (sscanf(c->head, "HTTP/1.%c %3d", &version, &c->status) != 2) return false;
    const char *digits = find_header(c->head, "\r\ncontent-length:");
    bool has_length = *digits >= '0' && *digits <= '9';
    bool is_empty = c->status == 204 || c->status == 304;
    size_t length = has_length && !is_empty ? strtoul(digits, NULL, 10) : 0;
    if ((!has_length && !is_empty) || length > SIZE_MAX / 2) return false;
    const char *connection = find_header(c->head, "\r\nconnection:");
    c->is_last = version == '0' || !strncasecmp(connection, "close", 5);
    c->expected = (size_t)(end + 4 - c->head) + length;
    return true;
}

static void finish_answer(Connection *c) {
    c->request->answered = now();
    c->request->status = c->status;
    c->request = NULL;
    waiting--;
    if (c->is_last || c->unsent_length || c->received > c->expected)
        close_connection(c);
    else
        make_idle(c);
}

/* Keeps the head and counts the rest. What comes unasked ends a connection, as its end does. */
static void receive(Connection *c) {
    static char rest[1 << 18];
    size_t stored = head_stored(c);
    struct iovec parts[] = {{c->head + stored, MAX_HEAD - stored}, {rest, sizeof rest}};
    ssize_t count = readv(c->socket, parts, 2);
    if (count < 0 && errno == EAGAIN) return;
    c->received += count > 0 ? (size_t)count : 0;
    if (count <= 0 || !c->request || (!c->expected && !read_head(c)))
        close_connection(c);
    else if (c->expected && c->received >= c->expected)
        finish_answer(c);
}

/* Sleeps until the timer or a connection has something. */
static void handle_events(void) {
    struct epoll_event events[MAX_EVENTS];
    int count = epoll_wait(epoll, events, MAX_EVENTS, -1);
    if (count < 0 && errno != EINTR) err(1, "epoll_wait");
    for (int i = 0; i < count; i++) {
        Connection *c = events[i].data.ptr; /* NULL for the timer, which only wakes */
        if (c && events[i].events & EPOLLOUT) send_rest(c);
        if (c && events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
    }
}

/* Sends each request when its time has come, even if answers are there to be read. */
static void run(void) {
    size_t next = 0;
    start = read_clock(CLOCK_MONOTONIC);
    int64_t wake = num_requests ? requests[0].intended : 0;
    wake_at(wake);
    while (next < num_requests || waiting) {
        if (now() >= wake) {
            if (next == num_requests) return; /* it has waited long enough */
            send_request(&requests[next], &messages[next % num_messages]);
            next++;
            wake = next < num_requests ? requests[next].intended : now() + drain;
            wake_at(wake);
        }
        handle_events();
    }
}

static int64_t read_number(const char *what, int64_t least, int64_t most) {
    long long number;
    if (scanf("%lld", &number) != 1 || getchar() != '\n') errx(1, "the load has no %s", what);
    if (number < least || number > most)
        errx(1, "%s must be %lld to %lld: %lld", what, (long long)least, (long long)most, number);
    return number;
}

static void read_message(Message *message) {
    message->length = (size_t)read_number("length of a message", 1, 1 << 30);
    message->bytes = allocate(message->length, 1);
    if (fread(message->bytes, 1, message->length, stdin) != message->length)
        errx(1, "the load ends inside a message");
}

static void read_load(void) {
    num_messages = (size_t)read_number("number of messages", 1, 1 << 24);
    num_requests = (size_t)read_number("number of requests", 0, 1 << 28);
    drain = read_number("wait for the last answers", 0, MOST_SECONDS);
    messages = allocate(num_messages, sizeof *messages);
    requests = allocate(num_requests, sizeof *requests);
    for (size_t i = 0; i < num_messages; i++) read_message(&messages[i]);
    int64_t time = -MOST_SECONDS;
    for (size_t i = 0; i < num_requests; i++)
        requests[i].intended = time = read_number("time of a request", time, MOST_SECONDS);
}

static void resolve(const char *host, const char *port) {
    struct addrinfo *found, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    int failure = getaddrinfo(host, port, &hints, &found);
    hints.ai_family = AF_INET6;
    if (failure && getaddrinfo(host, port, &hints, &found))
        errx(1, "%s, port %s: %s", host, port, gai_strerror(failure));
    server = found;
}

/* Where permitted: a busy server must not delay the clock that judges it, nor a limit the rest. */
static void ask_for_more(void) {
    struct rlimit files;
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) - 10);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static void prepare_to_wait(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event)) err(1, "a timer in epoll");
}

static void write_records(int64_t processor_time) {
    int niceness = getpriority(PRIO_PROCESS, 0);
    printf("%zu %lld %d\n", connections_opened, (long long)processor_time, niceness);
    for (const Request *r = requests; r < requests + num_requests; r++)
        printf("%lld %lld %d\n", (long long)r->sent, (long long)r->answered, r->status);
    if (fflush(stdout)) err(1, "the records");
}

int main(int count, char **arguments) {
    if (count != 3) errx(2, "usage: open_loop HOST PORT <load >records");
    read_load();
    resolve(arguments[1], arguments[2]);
    ask_for_more();
    prepare_to_wait();
    int64_t before = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    run();
    write_records(read_clock(CLOCK_PROCESS_CPUTIME_ID) - before);
}
