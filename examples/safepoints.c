// Threads that write to an arena all the time, and snapshots that never see what is half done. See
// pagetide_safepoints(3).
//
//   safepoints STORE
//
// Tellers move money between accounts: what one loses the other gets, so that all accounts together
// always hold the same. Meanwhile the bank takes snapshots. At the end it opens each of them and
// counts the money.

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>

#include "pagetide/pagetide.h"

enum { TELLERS = 4, ACCOUNTS = 1000, MONEY = 100, SNAPSHOTS = 5 };

// In the arena. Each teller has accounts of its own.
struct bank {
  long money[TELLERS][ACCOUNTS];
};

struct teller {
  pthread_t thread;
  pagetide_safepoints* points;
  long* money;
  unsigned seed;
};

static atomic_bool closing;

// Functions of Pagetide return less than 0 when they fail.
static void check(int result) {
  if (result >= 0) return;
  fprintf(stderr, "safepoints: %s\n", pagetide_last_error_message());
  exit(1);
}

// Those that give an address return NULL.
static void* check_address(void* address) {
  if (address == NULL) check(pagetide_last_error());
  return address;
}

static unsigned next_account(struct teller* teller) {
  teller->seed = teller->seed * 1664525U + 1013904223U;
  return (teller->seed >> 16) % ACCOUNTS;
}

static void* work(void* argument) {
  struct teller* teller = argument;
  pagetide_mutator* mutator = NULL;
  check(pagetide_mutator_create(teller->points, "teller", &mutator));
  for (unsigned transfers = 0; !atomic_load(&closing); transfers++) {
    const unsigned from = next_account(teller);
    teller->money[from]--;
    if (transfers % 100 == 0) sched_yield();  // a snapshot now would miss one coin
    teller->money[next_account(teller)]++;
    pagetide_mutator_poll(mutator);  // one now is right
  }
  pagetide_mutator_destroy(mutator);
  return NULL;
}

static long count_money(const struct bank* bank) {
  long sum = 0;
  for (int teller = 0; teller < TELLERS; teller++) {
    for (int account = 0; account < ACCOUNTS; account++) sum += bank->money[teller][account];
  }
  return sum;
}

static void open_bank(pagetide_arena* arena, struct bank* bank) {
  for (int teller = 0; teller < TELLERS; teller++) {
    for (int account = 0; account < ACCOUNTS; account++) bank->money[teller][account] = MONEY;
  }
  check(pagetide_arena_set_root(arena, "bank", "struct bank", bank, sizeof *bank));
}

static void run(pagetide_store* store, pagetide_snapshot_id ids[SNAPSHOTS]) {
  pagetide_arena* arena = NULL;
  pagetide_safepoints* points = NULL;
  pagetide_snapshotter* snapshotter = NULL;
  pagetide_snapshotter_options options;
  struct teller tellers[TELLERS];

  check(pagetide_arena_create(NULL, &arena));
  struct bank* bank = check_address(pagetide_arena_allocate(arena, sizeof *bank));
  open_bank(arena, bank);

  check(pagetide_safepoints_create(&points));
  check(pagetide_snapshotter_options_init(&options, sizeof options));
  options.safepoints = points;
  options.safepoint_limit_ms = 60000;
  check(pagetide_snapshotter_create(arena, store, &options, &snapshotter));

  for (unsigned i = 0; i < TELLERS; i++) {
    tellers[i] = (struct teller){.points = points, .money = bank->money[i], .seed = i};
    if (pthread_create(&tellers[i].thread, NULL, work, &tellers[i]) != 0) abort();
  }
  for (int i = 0; i < SNAPSHOTS; i++) {
    const struct timespec business_hours = {.tv_nsec = 10000000};
    thrd_sleep(&business_hours, NULL);
    check(pagetide_snapshotter_take(snapshotter, &ids[i]));
  }
  atomic_store(&closing, 1);
  for (int i = 0; i < TELLERS; i++) pthread_join(tellers[i].thread, NULL);

  pagetide_snapshotter_destroy(snapshotter);
  pagetide_safepoints_destroy(points);
  pagetide_arena_destroy(arena);
}

int main(int argc, char** argv) {
  pagetide_store* store = NULL;
  pagetide_snapshot_id ids[SNAPSHOTS];
  if (argc != 2) {
    fprintf(stderr, "usage: safepoints STORE\n");
    return 2;
  }
  check(pagetide_store_open(argv[1], PAGETIDE_STORE_CREATE_OR_WRITE, &store));
  run(store, ids);
  for (int i = 0; i < SNAPSHOTS; i++) {
    pagetide_arena* arena = NULL;
    check(pagetide_store_open_arena(store, ids[i], NULL, &arena));
    const struct bank* bank =
        check_address(pagetide_arena_find_root(arena, "bank", "struct bank", sizeof(struct bank)));
    printf("snapshot %d holds %ld coins\n", i + 1, count_money(bank));
    pagetide_arena_destroy(arena);
  }
  pagetide_store_close(store);
  return 0;
}
