// Which pages of this memory were written since the last look? See pagetide_tracker(3).

#define _DEFAULT_SOURCE  // MAP_ANONYMOUS

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pagetide/pagetide.h"

// Functions of Pagetide return less than 0 when they fail.
static void check(int result) {
  if (result >= 0) return;
  fprintf(stderr, "watch_memory: %s\n", pagetide_last_error_message());
  exit(1);
}

static void check_system(int is_fine, const char* call) {
  if (is_fine) return;
  perror(call);
  exit(1);
}

// Prints the pages of a set as runs: "written 1-2 7".
static void print_pages(const pagetide_collected* collected, int set, const char* name) {
  pagetide_page_run run = {0, 0};
  if (pagetide_collected_count(collected, set) <= 0) return;
  printf(" %s", name);
  while (pagetide_collected_next_run(collected, set, &run) > 0) {
    printf(run.count > 1 ? " %zu-%zu" : " %zu", run.first, run.first + run.count - 1);
  }
}

// Takes what the consumer has not seen yet, and prints it.
static void take(pagetide_tracker* tracker, pagetide_watch_id watch, pagetide_consumer_id consumer,
                 const char* name, pagetide_collected* collected) {
  check(pagetide_tracker_take(tracker, watch, consumer, collected));
  printf("%s:", name);
  print_pages(collected, PAGETIDE_WRITTEN, "written");
  print_pages(collected, PAGETIDE_ZEROED, "zeroed");
  printf("\n");
}

int main(void) {
  const size_t page = pagetide_page_size();
  const size_t size = 16 * page;
  char* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check_system(memory != MAP_FAILED, "mmap");

  pagetide_tracker* tracker = NULL;
  check(pagetide_tracker_create(NULL, &tracker));  // NULL: the best way this machine has
  printf("tracked by %s\n", pagetide_backend_name(pagetide_tracker_backend(tracker)));
  pagetide_watch_id watch = 0;
  check(pagetide_tracker_watch(tracker, memory, size, &watch));
  pagetide_collected* collected = NULL;
  check(pagetide_collected_create(&collected));

  // Two that want to know, each at its own pace. Consumer 0 is always there.
  const pagetide_consumer_id backup = 0;
  pagetide_consumer_id statistics = 0;
  check(pagetide_tracker_add_consumer(tracker, &statistics));

  // Writes of the program's own, and of the kernel on its behalf.
  memset(memory + 1 * page, 'a', 2 * page);
  int ends[2];
  check_system(pipe(ends) == 0, "pipe");
  check_system(write(ends[1], "hello", 5) == 5, "write");
  check_system(read(ends[0], memory + 7 * page, 5) == 5, "read");
  take(tracker, watch, backup, "backup", collected);

  memory[12 * page] = 'b';
  take(tracker, watch, backup, "backup", collected);
  take(tracker, watch, statistics, "statistics", collected);

  // Pages 1 and 2 go back to the system: they need not be copied, they are known to be zero.
  check(pagetide_tracker_purge(tracker, memory + 1 * page, 2 * page));
  take(tracker, watch, backup, "backup", collected);

  pagetide_collected_destroy(collected);
  pagetide_tracker_destroy(tracker);
  return 0;
}
