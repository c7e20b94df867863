/*
 * A program that forks with an open device. One child opens the device itself, another executes a
 * program that does.
 *
 *   family          runs the parent
 *   family child    runs the program that the parent's child executes
 */
#define _GNU_SOURCE
#include "nic.h"
#include <sys/wait.h>

enum { FRAMES = 200, LEN = 128, DEPTH = 16 };

struct loop {
	struct nic nic;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_flow *flow;
};

static struct loop open_loop(void)
{
	struct loop loop = { .nic = nic_open(NULL) };

	loop.cq = make_cq(&loop.nic, 4 * DEPTH, NULL);
	struct ibv_qp_cap cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 };
	loop.qp = make_qp(&loop.nic, loop.cq, cap, 0);
	make_ready(loop.qp, 1);
	loop.flow = take_all(loop.qp, 1);
	return loop;
}

static void close_loop(struct loop *loop)
{
	CHECK(!ibv_destroy_flow(loop->flow));
	CHECK(!ibv_destroy_qp(loop->qp));
	CHECK(!ibv_destroy_cq(loop->cq));
	nic_close(&loop->nic);
}

/* Sends frames to itself. `mark` distinguishes the processes: a shared wire must not mix their
 * frames. */
static void exchange(struct loop *loop, uint32_t mark)
{
	for (uint32_t i = 0; i < FRAMES; i++) {
		udp_frame(loop->nic.memory, LEN, mark + i);
		post_buffer(&loop->nic, loop->qp, i);
		send_frame(&loop->nic, loop->qp, i, 0, LEN);
		for (int left = 2; left > 0; left--) {
			struct ibv_wc wc = await(loop->cq);
			CHECK(wc.wr_id == i);
			CHECK(wc.opcode == IBV_WC_SEND || !memcmp(received_at(&loop->nic, i), loop->nic.memory, LEN));
		}
	}
}

static void exchange_on_own_device(uint32_t mark)
{
	struct loop loop = open_loop();

	exchange(&loop, mark);
	close_loop(&loop);
}

static void expect_success(pid_t child)
{
	int status;

	CHECK(child > 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_SAYING(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
}

/* In the child, the parent's handles are invalid, and closing them has no effect on the parent. */
static void inherit(struct loop *loop)
{
	struct ibv_port_attr port;

	CHECK_SAYING(ibv_query_port(loop->nic.context, 1, &port) == EIO, "the child can use the parent's device");
	errno = 0;
	CHECK(!ibv_alloc_pd(loop->nic.context) && errno == EIO);
	CHECK(!close(loop->nic.context->cmd_fd));
	exchange_on_own_device(1000000);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "child")) {
		exchange_on_own_device(2000000);
		return 0;
	}
	CHECK_SAYING(argc == 1, "usage: family [child]");
	struct loop loop = open_loop();
	uint64_t before = counter_of(&loop.nic, 1, "counters/port_rcv_packets");

	exchange(&loop, 0);
	pid_t forked = fork();
	if (!forked) {
		inherit(&loop);
		/* Not exit, which would run the exit handlers of the parent. */
		_exit(0);
	}
	pid_t executed = fork();
	if (!executed) {
		execl("/proc/self/exe", "family", "child", (char *)NULL);
		_exit(127);
	}
	/* The parent continues meanwhile. */
	exchange(&loop, 3000000);
	expect_success(forked);
	expect_success(executed);
	exchange(&loop, 4000000);
	/* All processes count in the same counters. */
	await_counter(&loop.nic, 1, "counters/port_rcv_packets", before + 5 * FRAMES);
	close_loop(&loop);
	puts("ok");
	return 0;
}
