/// Where providers are: the book of addresses, whoever meets whom, and finding providers that moved.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "core/format.h"
#include "repo/cluster/address_keeper.h"
#include "repo/cluster/addresses.h"
#include "repo/cluster/finder.h"
#include "repo/cluster/membership.h"
#include "tests/cluster/cluster_world.h"

namespace freshet::cluster {
namespace {

using ::testing::HasSubstr;

TEST(AddressBook, IsReadBackAndRefusesWhatItIsNot) {
  AddressBook book;
  ASSERT_TRUE(book.say("b", "tcp://host:1"));
  ASSERT_TRUE(book.say("a", "ipc:///a folder/socket"));
  ASSERT_TRUE(book.say("b", "tcp://host:2"));
  ASSERT_TRUE(book.say("b", "tcp://host:2"));
  EXPECT_EQ(book.encode(), "a 1 ipc:///a folder/socket\nb 2 tcp://host:2\n");
  EXPECT_EQ(AddressBook::decode(book.encode()).value(), book);
  EXPECT_EQ(AddressBook::decode("").value(), AddressBook());
  EXPECT_EQ(book.address_of("c"), "");
  for (const std::string& text :
       {std::string("a"), std::string("a\n"), std::string("a 1\n"), std::string("a 1 \n"), std::string("a 0 x\n"),
        std::string("a -1 x\n"), std::string("a 1x y\n"), std::string("a 1 x"), std::string("/ 1 x\n"),
        std::string(" 1 x\n"), std::string("b 1 x\na 1 x\n"), std::string("a 1 x\na 2 x\n"),
        std::string("a 99999999999999999999 x\n"), std::string("a 1 x\0y\n", 8),
        "a 1 " + std::string(kProviderAddressBytesMax + 1, 'x') + "\n"}) {
    EXPECT_EQ(AddressBook::decode(text).error().code(), Code::corrupt) << text.substr(0, 40);
  }
  EXPECT_EQ(book.say("", "x").error().code(), Code::invalid_argument);
  EXPECT_EQ(book.say("a", "").error().code(), Code::invalid_argument);
  EXPECT_EQ(book.say("a", "x\ny").error().code(), Code::invalid_argument);
}

TEST(AddressBook, HasALimit) {
  AddressBook book;
  AddressBook other;
  for (std::size_t i = 0; i < kProvidersMax; ++i) ASSERT_TRUE(book.say(format("p{}", i), "x"));
  EXPECT_EQ(book.say("q", "x").error().code(), Code::out_of_space);
  ASSERT_TRUE(other.say("q", "x"));
  EXPECT_FALSE(book.merge(other));
  EXPECT_EQ(AddressBook::decode(book.encode()).value(), book);
}

// Providers move and meet at random. What anybody knows is something that was true, it never goes back, and when all
// have met, all know where each one is.
TEST(AddressBook, ComesTogetherWhoeverMeetsWhom) {
  constexpr std::size_t kCount = 6;
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 50; ++round) {
    std::vector<AddressBook> books(kCount);
    std::vector<int> moves(kCount, 0);
    std::vector<std::map<std::size_t, int>> known(kCount);
    const auto id = [](std::size_t i) { return format("p{}", i); };
    const auto look = [&](std::size_t at) {
      for (std::size_t of = 0; of < kCount; ++of) {
        const std::string address = books[at].address_of(id(of));
        const int move = address.empty() ? 0 : std::stoi(address.substr(address.find('/') + 1));
        ASSERT_LE(move, moves[of]);
        ASSERT_GE(move, known[at][of]);
        known[at][of] = move;
      }
    };
    for (int step = 0; step < 200; ++step) {
      const std::size_t one = random() % kCount;
      const std::size_t other = random() % kCount;
      if (random() % 4 == 0) {
        ASSERT_TRUE(books[one].say(id(one), format("{}/{}", id(one), ++moves[one])));
      } else if (one != other) {
        books[one].merge(books[other]);
        if (random() % 2 == 0) books[other].merge(books[one]);
        look(other);
      }
      look(one);
    }
    for (std::size_t i = 1; i < kCount; ++i) books[0].merge(books[i]);
    for (std::size_t i = 1; i < kCount; ++i) {
      books[i].merge(books[0]);
      EXPECT_EQ(books[i], books[0]);
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(books[0].address_of(id(i)), moves[i] == 0 ? std::string() : format("{}/{}", id(i), moves[i]));
    }
  }
}

TEST(AddressBook, OneThatWasRestoredFromACopyHasTheLastWord) {
  AddressBook copy;
  ASSERT_TRUE(copy.say("p", "one"));
  AddressBook others = copy;
  ASSERT_TRUE(others.merge([&] {
    AddressBook later = copy;
    EXPECT_TRUE(later.say("p", "two"));
    return later;
  }()));
  ASSERT_TRUE(copy.say("p", "three"));  // It counts a change that the others have already.
  AddressBook met = others;
  met.merge(copy);
  copy.merge(others);
  EXPECT_EQ(met, copy) << "all agree, on whichever";
  ASSERT_TRUE(copy.say("p", "three"));
  met.merge(copy);
  EXPECT_EQ(met.address_of("p"), "three");
}

/// Providers in this process, each at an address where it can be reached until it moves.
class Moving : public ::testing::Test {
 protected:
  Moving() {
    std::vector<Provider> list;
    for (const char* id : {"a", "b", "c"}) {
      stores_[id] = open_or_die(std::make_unique<DiskWithLimit>(make_memory_backend(), full_));
      const SharedRecord self{.key = kSelfKey, .value = id};
      EXPECT_TRUE(stores_[id]->change_shared_records({}, std::span(&self, 1)));
      list.push_back({.id = id, .address = format("{}/1", id)});
      move(id, list.back().address);
    }
    placement_ = form(list, connect(finder())).value();
  }
  void move(const std::string& id, const std::string& address) {
    const MutexLock lock(mutex_);
    std::erase_if(places_, [&](const auto& one) { return one.second == id; });
    places_[address] = id;
  }
  std::shared_ptr<ProviderFinder> finder(Repository* own = nullptr) {
    const auto made = std::make_shared<ProviderFinder>(
        [this](const std::string& address) -> Result<std::shared_ptr<Repository>> {
          const MutexLock lock(mutex_);
          const auto at = places_.find(address);
          if (at == places_.end()) return fail(Code::unavailable, "nobody is at " + address);
          return std::shared_ptr<Repository>(stores_.at(at->second).get(), [](Repository*) {});
        },
        own);
    made->know(placement_);
    return made;
  }
  static Connect connect(const std::shared_ptr<ProviderFinder>& finder) {
    return [finder](const Provider& provider) { return finder->reach(provider); };
  }
  std::unique_ptr<AddressKeeper> keep(const std::string& id, const std::string& address) {
    Repository& own = *stores_.at(id);
    return AddressKeeper::start(own, id, address, finder(&own), {.look = kOften, .again = kOften}).value();
  }
  const Provider& provider(const std::string& id) const { return placement_.providers()[placement_.index_of(id)]; }
  Repository* reached(ProviderFinder& from, const std::string& id) {
    const auto repository = from.reach(provider(id));
    return repository ? repository->get() : nullptr;
  }
  bool everybody_knows(const std::string& id, const std::string& address) {
    return std::ranges::all_of(stores_,
                               [&](const auto& one) { return addresses_at(*one.second)->address_of(id) == address; });
  }
  template <typename Condition>
  static bool eventually(const Condition& condition) {
    const Time deadline = system_clock().now() + std::chrono::minutes(2);
    while (!condition() && system_clock().now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }

  static constexpr Duration kOften = std::chrono::milliseconds(2);
  const std::shared_ptr<std::atomic<bool>> full_ = std::make_shared<std::atomic<bool>>(false);
  Placement placement_;
  std::map<std::string, std::unique_ptr<Repository>> stores_;
  Mutex mutex_;
  std::map<std::string, std::string> places_ FRESHET_GUARDED_BY(mutex_);
};

TEST_F(Moving, OneThatMovedIsFoundByWhatAnotherKnows) {
  const auto client = finder();
  EXPECT_EQ(reached(*client, "b"), stores_["b"].get());
  move("b", "b/2");
  EXPECT_THAT(client->reach(provider("b")).error().message(), HasSubstr("nobody is at b/1"));
  const auto kept = keep("b", "b/2");
  ASSERT_TRUE(eventually([&] { return everybody_knows("b", "b/2"); }));
  EXPECT_TRUE(eventually([&] { return reached(*client, "b") == stores_["b"].get(); })) << "one that was there before";
  EXPECT_EQ(reached(*finder(), "b"), stores_["b"].get()) << "one that only knows the placement";
  for (auto& [id, store] : stores_) EXPECT_EQ(placement_at(*store).value(), placement_);
}

TEST_F(Moving, AnotherOneAtItsOldAddressIsNotTakenForIt) {
  move("b", "b/2");
  move("c", "b/1");
  const auto refused = finder()->reach(provider("b"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("at b/1 is another provider, c"));
  const auto b = keep("b", "b/2");
  const auto c = keep("c", "b/1");
  ASSERT_TRUE(eventually([&] { return everybody_knows("b", "b/2") && everybody_knows("c", "b/1"); }));
  EXPECT_EQ(reached(*finder(), "b"), stores_["b"].get());
  EXPECT_EQ(reached(*finder(), "c"), stores_["c"].get());
}

TEST_F(Moving, WhenAllMovedOneMeetingIsEnough) {
  for (const char* id : {"a", "b", "c"}) move(id, format("{}/2", id));
  const auto a = keep("a", "a/2");
  // The others are told where one of them is.
  for (const char* id : {"b", "c"}) {
    ASSERT_TRUE(say_address(*stores_[id], id, format("{}/2", id)));
    ASSERT_TRUE(exchange_addresses(*stores_[id], *stores_["a"]));
  }
  const auto b = keep("b", "b/2");
  const auto c = keep("c", "c/2");
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(eventually([&] { return everybody_knows(id, format("{}/2", id)); }));
  }
  const auto client = finder();
  client->learn(addresses_at(*stores_["c"]).value());
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(reached(*client, id), stores_[id].get());
}

TEST_F(Moving, OneThatIsWhereItWasSaysNothing) {
  const auto a = keep("a", "a/1");
  const auto b = keep("b", "b/2");
  move("b", "b/2");
  ASSERT_TRUE(eventually([&] { return everybody_knows("b", "b/2"); }));
  for (auto& [id, store] : stores_) EXPECT_EQ(addresses_at(*store)->encode(), "b 1 b/2\n");
}

TEST_F(Moving, WhatCannotBeWrittenDownAtFirstIsSaidLater) {
  move("b", "b/2");
  *full_ = true;
  const auto kept = keep("b", "b/2");
  EXPECT_EQ(addresses_at(*stores_["b"])->address_of("b"), "");
  *full_ = false;
  EXPECT_TRUE(eventually([&] { return everybody_knows("b", "b/2"); }));
  EXPECT_FALSE(AddressKeeper::start(*stores_["c"], "c", "c\n2", finder(), {})) << "no address, now or later";
}

TEST_F(Moving, AnErrorNamesTheAddressWhereItIsNow) {
  const auto from = finder();
  AddressBook book;
  ASSERT_TRUE(book.say("b", "b/2"));
  from->learn(book);
  const auto client = ClusterRepository::open(placement_, connect(from),
                                              [from](const Provider& provider) { return from->address_of(provider); });
  move("b", "b/3");
  const auto models = (*client)->models();
  ASSERT_FALSE(models);
  EXPECT_THAT(models.error().message(), HasSubstr("provider b (b/2)"));
}

TEST_F(Moving, ADamagedBookHidesNobodyAndIsReplaced) {
  const SharedRecord damaged{.key = kAddressesKey, .value = "?"};
  ASSERT_TRUE(stores_["a"]->change_shared_records({}, std::span(&damaged, 1)));
  EXPECT_EQ(addresses_at(*stores_["a"]).value(), AddressBook());
  const auto client = finder();
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(reached(*client, id), stores_[id].get());
  ASSERT_TRUE(say_address(*stores_["a"], "a", "a/2"));
  EXPECT_EQ(addresses_at(*stores_["a"])->encode(), "a 1 a/2\n");
}

}  // namespace
}  // namespace freshet::cluster
