/*
 * Thread domains: each has its own doorbell register, on a page that the program allocates by
 * mapping it. QPs on them send and receive. The number of domains is the limit of the kernel for a
 * context, and no page is allocated twice. The numbers are those of Linux 6.1's driver
 * (`hw/mlx5/main.c`, `uar_mmap`).
 */
#include "nic.h"
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <sys/mman.h>

enum {
	DOMAINS = 1024,
	/* A page holds two registers. */
	PAGES = DOMAINS / 2,
	ALLOC_WC = 6,
	SIZE = 64,
};

/* Returns the mmap offset of a page, as `get_uar_mmap_offset` of libmlx5 does. */
static off_t offset_of_page(unsigned page)
{
	return ((off_t)(page >> 8) << 16 | ALLOC_WC << 8 | (page & 0xff)) * 4096;
}

static int refusal(const struct nic *nic, unsigned page, size_t length)
{
	void *mapped = mmap(NULL, length, PROT_WRITE, MAP_SHARED, nic->context->cmd_fd, offset_of_page(page));

	CHECK_SAYING(mapped == MAP_FAILED, "page %u was mapped", page);
	return errno;
}

static void send_and_receive(struct nic *nic, struct ibv_td *td, uint8_t number)
{
	struct ibv_parent_domain_init_attr attr = { .pd = nic->pd, .td = td };
	struct ibv_pd *pd = nic->pd, *domain = ibv_alloc_parent_domain(nic->context, &attr);
	struct ibv_cq *cq = make_cq(nic, 8, NULL);
	struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };

	CHECK(domain);
	nic->pd = domain;
	struct ibv_qp *qp = make_qp(nic, cq, cap, 0);
	nic->pd = pd;
	make_ready(qp, 1);
	struct ibv_flow *flow = take_all(qp, 1);

	post_buffer(nic, qp, 0);
	memset(nic->memory, number, SIZE);
	struct ibv_sge sge = { .addr = (uintptr_t)nic->memory, .length = SIZE, .lkey = nic->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(qp, &wr, &bad));
	for (int completed = 0; completed < 2;) {
		const int n = ibv_poll_cq(cq, 1, &wc);

		CHECK(n >= 0);
		CHECK(n == 0 || wc.status == IBV_WC_SUCCESS);
		completed += n;
	}
	CHECK(!memcmp(received_at(nic, 0), nic->memory, SIZE));

	CHECK(!ibv_destroy_flow(flow));
	/* A domain in use cannot be deallocated. */
	CHECK(ibv_dealloc_td(td) == EBUSY);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(domain));
}

int main(void)
{
	struct nic nic = nic_open(NULL);
	static struct ibv_td *tds[DOMAINS];
	struct ibv_td_init_attr attr = { 0 };
	struct mlx5dv_context dv = { .comp_mask = MLX5DV_CONTEXT_MASK_DYN_BFREGS };

	CHECK(!mlx5dv_query_device(nic.context, &dv));
	CHECK(dv.max_dynamic_bfregs == DOMAINS);
	for (int i = 0; i < DOMAINS; i++) {
		tds[i] = ibv_alloc_td(nic.context, &attr);
		CHECK_SAYING(tds[i], "thread domain %d", i);
	}
	CHECK(!ibv_alloc_td(nic.context, &attr) && errno == EINVAL);
	CHECK(refusal(&nic, 0, 4096) == EINVAL);
	CHECK(refusal(&nic, PAGES - 1, 4096) == EINVAL);
	CHECK(refusal(&nic, PAGES, 4096) == EINVAL);

	/* Both registers of the first page, a register of another page, and the last register. */
	send_and_receive(&nic, tds[0], 1);
	send_and_receive(&nic, tds[1], 2);
	send_and_receive(&nic, tds[600], 3);
	send_and_receive(&nic, tds[DOMAINS - 1], 4);

	for (int i = 0; i < DOMAINS; i++)
		CHECK(!ibv_dealloc_td(tds[i]));
	/* libmlx5 keeps the registers and allocates them again. */
	tds[0] = ibv_alloc_td(nic.context, &attr);
	CHECK(tds[0]);
	send_and_receive(&nic, tds[0], 5);
	CHECK(!ibv_dealloc_td(tds[0]));
	nic_close(&nic);

	/* Another context has its own pages. */
	nic = nic_open(NULL);
	CHECK(refusal(&nic, 0, 8192) == EINVAL);
	tds[0] = ibv_alloc_td(nic.context, &attr);
	CHECK(tds[0]);
	CHECK(!ibv_dealloc_td(tds[0]));
	nic_close(&nic);
	puts("ok");
	return 0;
}
