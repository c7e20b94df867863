/*
 * A receive queue that gets no frames: the flushes of a WQ in error and their order, the
 * transitions between its states, and libmlx5's view of the rings (mlx5dv_init_obj).
 */
#define _GNU_SOURCE
#include "check.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

enum { WRS = 128, BUFFER = 256, ROUNDS = 40 };

static uint8_t buffers[WRS * BUFFER];
static struct ibv_cq *cq;
static struct ibv_wq *wq;
static struct ibv_mr *mr;
static uint64_t next_id = 1000;

static int set_state(enum ibv_wq_state state)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state };

	return ibv_modify_wq(wq, &attr);
}

static int post_one(uint64_t id)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)(buffers + id % WRS * BUFFER), .length = BUFFER, .lkey = mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;

	return ibv_post_wq_recv(wq, &wr, &bad);
}

/* Waits for `n` flushes, numbered from `first` on, in order, and checks that no other follows. */
static void expect_flushes(uint64_t first, int n)
{
	struct ibv_wc wc;
	double deadline = seconds() + HANG;

	for (int i = 0; i < n;) {
		int got = ibv_poll_cq(cq, 1, &wc);
		CHECK(got >= 0);
		CHECK_SAYING(got || seconds() < deadline, "%d flushes of %d", i, n);
		if (!got)
			continue;
		CHECK_SAYING(wc.status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
		CHECK_SAYING(wc.wr_id == first + (uint64_t)i, "flush of %lu, not %lu", (unsigned long)wc.wr_id,
			     (unsigned long)first + (unsigned long)i);
		i++;
	}
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

/* Checks the rings that libmlx5 reports. */
static void check_dv(uint32_t max_wr)
{
	struct mlx5dv_rwq rwq = { 0 };
	struct mlx5dv_cq dv_cq = { 0 };
	struct mlx5dv_obj obj = {
		.rwq = { .in = wq, .out = &rwq },
		.cq = { .in = cq, .out = &dv_cq },
	};

	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_RWQ | MLX5DV_OBJ_CQ));
	CHECK(rwq.buf && rwq.dbrec);
	CHECK(rwq.wqe_cnt >= max_wr && (rwq.wqe_cnt & (rwq.wqe_cnt - 1)) == 0);
	/* Two scatter entries of 16 bytes each; strides are powers of two. */
	CHECK(rwq.stride >= 32 && (rwq.stride & (rwq.stride - 1)) == 0);
	CHECK(dv_cq.buf && dv_cq.dbrec && dv_cq.cqe_size == 64);
	CHECK(dv_cq.cqe_cnt > (uint32_t)cq->cqe && (dv_cq.cqe_cnt & (dv_cq.cqe_cnt - 1)) == 0);
	CHECK(dv_cq.cqn != 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	CHECK(mlx5dv_is_supported(context->device));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	mr = ibv_reg_mr(pd, buffers, sizeof buffers, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	cq = ibv_create_cq(context, 2 * WRS - 1, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_wq_init_attr attr = { .wq_type = IBV_WQT_RQ, .max_wr = WRS, .max_sge = 2, .pd = pd, .cq = cq };
	wq = ibv_create_wq(context, &attr);
	CHECK(wq);
	check_dv(WRS);

	CHECK(!set_state(IBV_WQS_RDY));
	int posted = 0;
	while (!post_one(next_id + (uint64_t)posted))
		posted++;
	CHECK_SAYING(posted == WRS, "%d WRs fit", posted);
	CHECK(!set_state(IBV_WQS_ERR));
	expect_flushes(next_id, posted);
	next_id += (uint64_t)posted;

	/* A WR posted to a WQ in error is flushed, too. */
	CHECK(!post_one(next_id));
	expect_flushes(next_id, 1);
	next_id++;

	CHECK_SAYING(set_state(IBV_WQS_RDY) == EINVAL, "ERR -> RDY");
	CHECK(!set_state(IBV_WQS_RESET));
	CHECK(!set_state(IBV_WQS_RDY));

	/* Wraps around the ring many times with different numbers of WRs: each is flushed once, in
	 * order. */
	srand(7);
	for (int round = 0; round < ROUNDS; round++) {
		posted = 1 + rand() % WRS;
		for (int i = 0; i < posted; i++)
			CHECK(!post_one(next_id + (uint64_t)i));
		CHECK(!set_state(IBV_WQS_ERR));
		expect_flushes(next_id, posted);
		next_id += (uint64_t)posted;
		CHECK(!set_state(IBV_WQS_RESET));
		CHECK(!set_state(IBV_WQS_RDY));
	}

	/* A reset WQ drops its WRs without completions, now or later. */
	for (int i = 0; i < WRS; i++)
		CHECK(!post_one(next_id++));
	CHECK(!set_state(IBV_WQS_RESET));
	CHECK(!set_state(IBV_WQS_RDY));
	CHECK(!post_one(next_id));
	CHECK(!set_state(IBV_WQS_ERR));
	expect_flushes(next_id, 1);

	CHECK_SAYING(ibv_destroy_cq(cq) == EBUSY, "a CQ in use");
	CHECK(!ibv_destroy_wq(wq));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("ok");
	return 0;
}
