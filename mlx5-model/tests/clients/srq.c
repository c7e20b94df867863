/*
 * Shared receive queues as objects. On mlx5 no RAW_PACKET QP receives from an SRQ, so no WR is ever
 * consumed. Tests creation, posting, the limit and its event, requests that mlx5 refuses, and
 * destruction.
 */
#define _GNU_SOURCE
#include "nic.h"

static struct nic nic;

static int set_limit(struct ibv_srq *srq, uint32_t limit)
{
	struct ibv_srq_attr attr = { .srq_limit = limit };

	return ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT);
}

static struct ibv_srq_attr query(struct ibv_srq *srq)
{
	struct ibv_srq_attr attr = { 0 };

	CHECK(!ibv_query_srq(srq, &attr));
	return attr;
}

static int post(struct ibv_srq *srq, int n)
{
	struct ibv_sge sge = { .addr = (uintptr_t)nic.memory, .length = 64, .lkey = nic.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	int posted = 0;

	while (posted < n && !ibv_post_srq_recv(srq, &wr, &bad))
		posted++;
	return posted;
}

int main(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 100, .max_sge = 2, .srq_limit = 7 } };
	struct ibv_device_attr device;

	nic = nic_open(NULL);
	CHECK(!ibv_query_device(nic.context, &device));
	CHECK(device.max_srq > 0 && device.max_srq_wr > 0 && device.max_srq_sge > 0);
	/* mlx5 cannot resize an SRQ and does not report the capability. */
	CHECK(!(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE));
	struct ibv_srq *srq = ibv_create_srq(nic.pd, &init);
	CHECK(srq);
	/* The size is rounded up to a power of two minus one. A limit at creation is ignored. */
	struct ibv_srq_attr attr = query(srq);
	CHECK_SAYING(attr.max_wr >= 100 && (attr.max_wr & (attr.max_wr + 1)) == 0, "%u WRs", attr.max_wr);
	CHECK(attr.max_sge >= 2 && attr.srq_limit == 0);
	no_event(&nic);

	CHECK(post(srq, 50) == 50);
	/* Enough receives are posted: the limit stays armed. */
	CHECK(!set_limit(srq, 50));
	CHECK(query(srq).srq_limit == 50);
	no_event(&nic);
	/* Too few receives are posted: the event comes once, and the limit is disarmed. */
	CHECK(!set_limit(srq, 51));
	await_event(&nic, IBV_EVENT_SRQ_LIMIT_REACHED);
	no_event(&nic);
	CHECK(query(srq).srq_limit == 0);
	CHECK(!set_limit(srq, 0));
	no_event(&nic);

	CHECK(!set_limit(srq, attr.max_wr));
	await_event(&nic, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(set_limit(srq, attr.max_wr + 1) == EINVAL);
	struct ibv_srq_attr larger = { .max_wr = 200 };
	CHECK(ibv_modify_srq(srq, &larger, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(query(srq).max_wr == attr.max_wr);
	/* The SRQ takes at least the requested number of receives, and at most its size. */
	int more = post(srq, 1 << 20);
	CHECK_SAYING(more >= 100 - 50 && (uint32_t)more <= attr.max_wr - 50, "%d more", more);
	CHECK(ibv_dealloc_pd(nic.pd) == EBUSY);

	struct ibv_srq_init_attr vast = { .attr = { .max_wr = (uint32_t)device.max_srq_wr + 1, .max_sge = 1 } };
	errno = 0;
	CHECK(!ibv_create_srq(nic.pd, &vast) && errno == EINVAL);
	vast = (struct ibv_srq_init_attr){ .attr = { .max_wr = 1, .max_sge = (uint32_t)device.max_srq_sge + 1 } };
	errno = 0;
	CHECK(!ibv_create_srq(nic.pd, &vast) && errno == EINVAL);
	CHECK(!ibv_destroy_srq(srq));
	nic_close(&nic);
	puts("ok");
	return 0;
}
