/*
 * The two ends of the TCP benchmark, in C so that they cost little. Each is one
 * thread around one epoll instance.
 *
 *   tcp serve PORT
 *   tcp load NET PORT SECONDS CONNECTIONS UP DOWN   asks again and again on each connection
 *   tcp new  NET PORT SECONDS CONNECTIONS UP DOWN   asks once on each, closes it, opens the next
 *   tcp idle NET PORT CONNECTIONS                   asks once on each, keeps it until its input ends
 *
 * An ask is a head of 64 bytes and UP bytes; its answer the same head and DOWN bytes. All
 * bytes are counted; heads, and the first of every CHECKED pieces of the rest, are compared
 * with what they have to be, and the others thrown away in the kernel, so that a proxy has
 * more to do than its ends. A wrong byte ends the program.
 *
 * NET is 10.x.0.0: the clients dial 10.x.0.1 to 10.x.0.250 in turn, since a client port can
 * be used again at another address at once.
 *
 * The clients print "asks seconds p50 p99", the latter in microseconds from the first
 * byte of the ask, or from connect(2), to the last of the answer.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATTERN (128 << 10)
#define CHECKED 8
#define ADDRESSES 250
#define MOST_ASKS (1 << 23)
#define PATIENCE 20 /* seconds for answers that are late; then some bytes are lost */
#define OPENING 32 /* connections that "idle" opens at a time */

struct head {
	uint64_t serial, up, down, rest[5];
};

struct conn {
	int fd;
	struct head head;
	uint64_t in, in_end, out, out_end; /* bytes of this ask or answer, heads included */
	double asked;
};

static char pattern[PATTERN], data[PATTERN];
static struct head ask;
static struct sockaddr_in server;
static enum { SERVE, LOAD, NEW, IDLE } mode;
static int epoll, listener, connections, open_now, opened;
static double seconds, started;
static float *took;
static long asks;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	fprintf(stderr, "tcp: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(int right)
{
	if (right)
		return;
	fprintf(stderr, "tcp: a byte arrived that was not sent so\n");
	exit(1);
}

static void watch(int fd, void *is)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = is};
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) < 0)
		fail("epoll_ctl");
}

/* give sends what the socket takes. It returns -1 when the connection is broken. */
static int give(struct conn *c)
{
	while (c->out < c->out_end) {
		uint64_t at = c->out - sizeof c->head, left = c->out_end - c->out;
		const char *from = (char *)&c->head + c->out;
		if (c->out >= sizeof c->head) {
			from = pattern + at % PATTERN;
			if (left > PATTERN - at % PATTERN)
				left = PATTERN - at % PATTERN;
		} else
			left = sizeof c->head - c->out;
		ssize_t n = send(c->fd, from, left, MSG_NOSIGNAL);
		if (n < 0)
			return errno == EAGAIN ? 0 : -1;
		c->out += n;
		if ((uint64_t)n < left)
			return 0; /* full: an edge will tell */
	}
	return 0;
}

/* unseen says whether the bytes at a place behind the head are thrown away. */
static int unseen(uint64_t at)
{
	return at / PATTERN % CHECKED != 0;
}

/* learn is told what was received. */
static void learn(struct conn *c, size_t n)
{
	if (c->in >= sizeof c->head) {
		uint64_t at = c->in - sizeof c->head;
		check(unseen(at) || memcmp(data, pattern + at % PATTERN, n) == 0);
	} else if (mode == SERVE) {
		memcpy((char *)&c->head + c->in, data, n);
		if (c->in + n == sizeof c->head)
			c->in_end = sizeof c->head + c->head.up;
	} else
		check(memcmp((char *)&c->head + c->in, data, n) == 0);
	c->in += n;
}

/* take receives until the message is whole, or there is no more. It returns -1 at the
 * end of the stream. */
static int take(struct conn *c, int ends)
{
	while (c->in < c->in_end) {
		uint64_t at = c->in - sizeof c->head, most = c->in_end - c->in, piece = PATTERN - at % PATTERN;
		int head = c->in < sizeof c->head;
		if (head)
			piece = sizeof c->head - c->in;
		most = most < piece ? most : piece;
		ssize_t n = recv(c->fd, data, most, !head && unseen(at) ? MSG_TRUNC : 0);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			return -1;
		if (n < 0)
			return 0;
		learn(c, n);
		if ((uint64_t)n < most && !ends)
			return 0; /* dry: an edge will tell */
	}
	return 0;
}

static void drop(struct conn *c)
{
	close(c->fd);
	open_now--;
	free(c);
}

static void begin(struct conn *c)
{
	c->head = ask;
	c->head.serial = ++ask.serial;
	c->in = c->out = 0;
	c->in_end = sizeof c->head + ask.down;
	c->out_end = sizeof c->head + ask.up;
	c->asked = now();
}

static struct conn *adopt(int fd)
{
	struct conn *c = calloc(1, sizeof *c);
	c->fd = fd;
	c->in_end = sizeof c->head;
	open_now++;
	return c;
}

static void dial(void)
{
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct sockaddr_in to = server;
	to.sin_addr.s_addr = htonl(ntohl(server.sin_addr.s_addr) + 1 + opened++ % ADDRESSES);
	if (fd < 0)
		fail("socket");
	struct conn *c = adopt(fd);
	begin(c);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	if (connect(fd, (void *)&to, sizeof to) < 0 && errno != EINPROGRESS)
		fail("connect");
	watch(fd, c);
}

/* answered is told of an ask whose answer is whole. It says whether c asks again. */
static int answered(struct conn *c)
{
	double t = now();
	int over = t - started >= seconds;
	if (asks < MOST_ASKS)
		took[asks] = (t - c->asked) * 1e6;
	asks++;
	if (mode == LOAD && !over) {
		begin(c);
		return 1;
	}
	if (mode == IDLE)
		c->in_end++; /* which never comes; if the connection ends, that is seen */
	else
		drop(c);
	if ((mode == NEW && !over) || (mode == IDLE && opened < connections))
		dial();
	return 0;
}

static void client_turn(struct conn *c, int ends)
{
	do {
		if (give(c) < 0 || take(c, ends) < 0)
			fail("a connection ended before its answer");
	} while (c->in == c->in_end && answered(c));
}

static void server_turn(struct conn *c, int ends)
{
	do {
		if (take(c, ends) < 0) {
			drop(c);
			return;
		}
		if (c->in < c->in_end)
			return;
		c->out_end = sizeof c->head + c->head.down;
		if (give(c) < 0) {
			drop(c);
			return;
		}
		if (c->out < c->out_end)
			return;
		c->in = c->out = c->out_end = 0;
		c->in_end = sizeof c->head;
	} while (ends);
}

static void accept_all(void)
{
	int fd;
	while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0)
		watch(fd, adopt(fd));
	if (errno != EAGAIN && errno != ECONNABORTED)
		fail("accept");
}

static void serve(void)
{
	int on = 1;
	server.sin_addr.s_addr = 0;
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* which its connections inherit */
	if (bind(listener, (void *)&server, sizeof server) < 0 || listen(listener, 4096) < 0)
		fail("listen");
	watch(listener, 0);
}

/* turns serves events until no client has anything left to do. */
static void turns(void)
{
	struct epoll_event events[64];
	while (mode == SERVE || (open_now > 0 && (mode != IDLE || asks < connections))) {
		int n = epoll_wait(epoll, events, 64, -1);
		for (int i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;
			int ends = (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
			if (!c)
				accept_all();
			else if (mode == SERVE)
				server_turn(c, ends);
			else
				client_turn(c, ends);
		}
	}
}

static int ascending(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

static void report(void)
{
	double length = now() - started;
	long kept = asks < MOST_ASKS ? asks : MOST_ASKS;
	qsort(took, kept, sizeof *took, ascending);
	printf("%ld %f %f %f\n", asks, length, took[kept / 2], took[kept * 99 / 100]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const char *modes[] = {"serve", "load", "new", "idle"};
	static const int arguments[] = {3, 8, 8, 5};
	while (mode <= IDLE && (argc < 2 || strcmp(argv[1], modes[mode])))
		mode++;
	if (mode > IDLE || argc != arguments[mode])
		return 2;
	srandom(1);
	for (int i = 0; i < PATTERN; i++)
		pattern[i] = random();
	epoll = epoll_create1(0);
	server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[mode == SERVE ? 2 : 3]))};
	if (mode == SERVE) {
		serve();
		turns();
	}
	server.sin_addr.s_addr = inet_addr(argv[2]);
	connections = atoi(argv[mode == IDLE ? 4 : 5]);
	if (mode != IDLE)
		seconds = atof(argv[4]), ask.up = atoll(argv[6]), ask.down = atoll(argv[7]);
	alarm(seconds + PATIENCE);
	took = malloc(MOST_ASKS * sizeof *took);
	started = now();
	for (int i = 0; i < connections && (mode != IDLE || i < OPENING); i++)
		dial();
	turns();
	alarm(0);
	report();
	if (mode == IDLE)
		while (read(0, data, sizeof data) > 0)
			;
	return 0;
}
