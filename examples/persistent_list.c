// A linked list that outlives its program: plain pointers, in an arena whose snapshots are in a
// store. See pagetide_arena(3).
//
//   persistent_list STORE [WORD | -WORD | --crash]...
//
// Adds each WORD to the end of the list, or takes it out (-WORD), and saves the list. Prints the
// list first. What follows --crash is added, but before it is saved the program is killed.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pagetide/pagetide.h"

struct node {
  struct node* next;
  char word[];
};

struct list {
  struct node* first;
  size_t count;
};

// Functions of Pagetide return less than 0 when they fail.
static void check(int result) {
  if (result >= 0) return;
  fprintf(stderr, "persistent_list: %s\n", pagetide_last_error_message());
  exit(1);
}

// Those that give an address return NULL.
static void* check_address(void* address) {
  if (address == NULL) check(pagetide_last_error());
  return address;
}

// The arena of the newest snapshot, or a new one for a store that has none yet.
static pagetide_arena* open_arena(pagetide_store* store) {
  pagetide_arena_options options;
  pagetide_arena* arena = NULL;
  pagetide_snapshot_id latest = 0;
  check(pagetide_arena_options_init(&options, sizeof options));
  options.name = "list";
  options.reserve_bytes = (size_t)1 << 30;

  const int found = pagetide_store_latest(store, &latest);
  if (found == PAGETIDE_NOT_FOUND) {
    check(pagetide_arena_create(&options, &arena));
  } else {
    check(found);
    check(pagetide_store_open_arena(store, latest, &options, &arena));
  }
  return arena;
}

static struct list* find_list(pagetide_arena* arena) {
  struct list* list = pagetide_arena_find_root(arena, "list", "struct list", sizeof *list);
  if (list != NULL) return list;
  if (pagetide_last_error() != PAGETIDE_NOT_FOUND) check(pagetide_last_error());
  list = check_address(pagetide_arena_allocate_zeroed(arena, 1, sizeof *list));
  check(pagetide_arena_set_root(arena, "list", "struct list", list, sizeof *list));
  return list;
}

static void add(pagetide_arena* arena, struct list* list, const char* word) {
  const size_t bytes = strlen(word) + 1;
  struct node* node = check_address(pagetide_arena_allocate(arena, sizeof *node + bytes));
  struct node** end = &list->first;
  memcpy(node->word, word, bytes);
  node->next = NULL;
  while (*end != NULL) end = &(*end)->next;
  *end = node;
  list->count++;
}

static void take_out(pagetide_arena* arena, struct list* list, const char* word) {
  struct node** link = &list->first;
  while (*link != NULL) {
    struct node* node = *link;
    if (strcmp(node->word, word) != 0) {
      link = &node->next;
      continue;
    }
    *link = node->next;
    pagetide_arena_deallocate(arena, node);
    list->count--;
  }
}

static void print(const struct list* list) {
  printf("%zu words:", list->count);
  for (const struct node* node = list->first; node != NULL; node = node->next) {
    printf(" %s", node->word);
  }
  printf("\n");
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: persistent_list STORE [WORD | -WORD | --crash]...\n");
    return 2;
  }
  // Whoever kills the program has seen all that it said.
  setvbuf(stdout, NULL, _IOLBF, BUFSIZ);

  pagetide_store* store = NULL;
  check(pagetide_store_open(argv[1], PAGETIDE_STORE_CREATE_OR_WRITE, &store));
  pagetide_arena* arena = open_arena(store);
  pagetide_snapshotter* snapshotter = NULL;
  check(pagetide_snapshotter_create(arena, store, NULL, &snapshotter));
  struct list* list = find_list(arena);
  print(list);

  int crash = 0;
  for (int i = 2; i < argc; ++i) {
    const char* word = argv[i];
    if (strcmp(word, "--crash") == 0) {
      crash = 1;
      continue;
    }
    if (word[0] == '-') {
      take_out(arena, list, word + 1);
    } else {
      add(arena, list, word);
    }
    if (crash) raise(SIGKILL);
    pagetide_snapshot_id id = 0;
    check(pagetide_snapshotter_take(snapshotter, &id));
    printf("%s saved in snapshot %llu\n", word, (unsigned long long)id);
  }

  pagetide_snapshotter_destroy(snapshotter);
  pagetide_arena_destroy(arena);
  pagetide_store_close(store);
  return 0;
}
