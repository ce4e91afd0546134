/*
 * The two ends of the UDP benchmark, in C so that they cost little.
 *
 *   udp echo AT                           answers every datagram with itself
 *   udp load TO SECONDS RATE FLOWS SIZE   asks from FLOWS sockets; RATE 0: as fast as it can
 *   udp new  TO SECONDS RATE ASKERS MOST  asks each question from a new port, ASKERS at a time,
 *                                         until SECONDS are over or MOST are asked
 *   udp idle TO FLOWS                     asks once from each of FLOWS ports, and waits
 *
 * AT and TO are ADDRESS:PORT. Each prints "sent answered seconds".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define LONGEST 65536

static char payload[LONGEST];
static struct sockaddr_in server;
static double seconds, started;
static int rate, flows, askers, size, most;
static volatile int stopped;
static volatile long sent, answered;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int udp(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), room = 16 << 20;
	if (fd < 0) {
		perror("socket");
		exit(1);
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
	return fd;
}

static void echo(void)
{
	static char data[BATCH][LONGEST];
	static struct mmsghdr m[BATCH];
	static struct iovec iov[BATCH];
	static struct sockaddr_in from[BATCH];
	int fd = udp();
	bind(fd, (void *)&server, sizeof server);
	for (;;) {
		for (int i = 0; i < BATCH; i++) {
			iov[i] = (struct iovec){data[i], LONGEST};
			m[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1, .msg_name = &from[i], .msg_namelen = sizeof from[i]};
		}
		int n = recvmmsg(fd, m, BATCH, MSG_WAITFORONE, 0);
		for (int i = 0; i < n; i++)
			iov[i].iov_len = m[i].msg_len;
		for (int done = 0; done < n;) {
			int k = sendmmsg(fd, m + done, n - done, 0);
			done += k > 0 ? k : 1;
		}
	}
}

/* hear counts the answers on every socket of an epoll instance. */
static void *hear(void *arg)
{
	static char data[BATCH][2048];
	static struct mmsghdr m[BATCH];
	static struct iovec iov[BATCH];
	struct epoll_event events[256];
	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){data[i], sizeof data[i]};
		m[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
	}
	while (!stopped) {
		int n = epoll_wait(*(int *)arg, events, 256, 50);
		for (int i = 0; i < n; i++) {
			int k = recvmmsg(events[i].data.fd, m, BATCH, MSG_DONTWAIT, 0);
			answered += k > 0 ? k : 0;
		}
	}
	return 0;
}

/* due returns how many are to be sent now, at most some. */
static long due(long most)
{
	long n = (now() - started) * rate - sent;
	if (rate == 0)
		return most;
	if (n <= 0) {
		struct timespec pause = {0, 150000};
		nanosleep(&pause, 0);
	}
	return n < most ? n : most;
}

static void load(void)
{
	int epoll = epoll_create1(0), *fd = calloc(flows, sizeof *fd);
	static struct mmsghdr m[BATCH];
	struct iovec iov = {payload, size};
	pthread_t ear;
	for (int i = 0; i < flows; i++) {
		fd[i] = udp();
		connect(fd[i], (void *)&server, sizeof server);
		struct epoll_event e = {.events = EPOLLIN, .data.fd = fd[i]};
		epoll_ctl(epoll, EPOLL_CTL_ADD, fd[i], &e);
	}
	for (int i = 0; i < BATCH; i++)
		m[i].msg_hdr = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1};
	pthread_create(&ear, 0, hear, &epoll);
	started = now();
	for (int f = 0; now() - started < seconds; f = (f + 1) % flows) {
		int k = due(flows > 1 ? 1 : rate ? 8 : BATCH);
		if (k > 0 && (k = sendmmsg(fd[f], m, k, MSG_DONTWAIT)) > 0)
			sent += k;
	}
	usleep(500000);
	stopped = 1;
	pthread_join(ear, 0);
}

static int question(void)
{
	char data[LONGEST];
	struct timeval limit = {0, 500000};
	int fd = udp();
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	connect(fd, (void *)&server, sizeof server);
	__sync_fetch_and_add(&sent, send(fd, payload, 64, 0) >= 0);
	__sync_fetch_and_add(&answered, recv(fd, data, sizeof data, 0) > 0);
	return fd;
}

static void *ask(void *arg)
{
	while (now() - started < seconds && sent < most)
		if (due(1) > 0)
			close(question());
	return arg;
}

static void fresh(void)
{
	pthread_t asker[64];
	started = now();
	for (int i = 0; i < askers && i < 64; i++)
		pthread_create(&asker[i], 0, ask, 0);
	for (int i = 0; i < askers && i < 64; i++)
		pthread_join(asker[i], 0);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int arg[7] = {0};
	for (int i = 2; i < argc && i < 7; i++)
		arg[i] = atoi(argv[i]);
	char address[16];
	unsigned short port;
	if (sscanf(argv[2], "%15[0-9.]:%hu", address, &port) != 2)
		return 2;
	server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(address)};
	seconds = arg[3], rate = arg[4], flows = askers = arg[5], size = most = arg[6];
	started = now();
	if (!strcmp(argv[1], "echo"))
		echo();
	else if (!strcmp(argv[1], "load"))
		load();
	else if (!strcmp(argv[1], "new"))
		fresh();
	else if (!strcmp(argv[1], "idle"))
		for (int i = 0; i < arg[3]; i++)
			question();
	printf("%ld %ld %f\n", sent, answered, now() - started);
	fflush(stdout);
	if (!strcmp(argv[1], "idle"))
		pause();
	return 0;
}
