// What the lanes of a warp access at one place of the program is one request, if each has accessed it as often since they last met:
// a GPU's lanes go together as well. Requests are counted once nobody can join them any more.
#include "profiler.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace cuemu {
namespace {
struct Place {
  const Array *array; uintptr_t caller; Access verb;
  bool operator<(const Place &o) const { return std::tie(array, caller, verb) < std::tie(o.array, o.caller, o.verb); }
};
struct Since { unsigned meeting, count; };
struct Request {
  int bytes;
  std::vector<std::pair<int, uintptr_t>> lanes;    // lane and address
};
std::map<std::pair<Place, int>, Since> accesses;   // of a thread at a place, since its last meeting
std::map<std::tuple<Place, int, unsigned, unsigned>, Request> requests;  // place, warp, meeting, how often since
std::vector<Site> sites;

size_t num_distinct(std::vector<uintptr_t> &values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values.size();
}

void count_sectors(Site &site, const Request &request) {
  std::vector<uintptr_t> sectors, starts;
  for (auto [lane, at] : request.lanes) {
    starts.push_back(at);
    for (uintptr_t sector = at / 32; sector <= (at + request.bytes - 1) / 32; sector++) sectors.push_back(sector);
  }
  site.cost += num_distinct(sectors);
  site.ideal += (num_distinct(starts) * request.bytes + 31) / 32;
}

// 32 banks give 4 bytes each. Of 8 bytes half a warp is served at a time, of 16 a quarter.
void count_wavefronts(Site &site, const Request &request) {
  const int together = request.bytes <= 4 ? 32 : std::max(1, 128 / request.bytes);
  for (int first = 0; first < 32; first += together) {
    std::vector<uintptr_t> words;
    for (auto [lane, at] : request.lanes)
      if (lane >= first && lane < first + together)
        for (int byte = 0; byte < request.bytes; byte += 4) words.push_back((at + byte) / 4);
    if (words.empty()) continue;
    num_distinct(words);
    int in_bank[32] = {0}, most = 0;
    for (uintptr_t word : words) most = std::max(most, ++in_bank[word % 32]);
    site.cost += most;
    site.ideal++;
  }
}
}  // namespace

void note_request(const Array &array, uintptr_t at, int bytes, Access access, uintptr_t caller) {
  const Place place{&array, caller, access == ASYNC_WRITE ? WRITE : access};
  Since &since = accesses[{place, current->number}];
  if (since.meeting != current->meetings) since = {current->meetings, 0};
  Request &request = requests[{place, warp_of(current->number), since.meeting, since.count++}];
  request.bytes = bytes;
  request.lanes.push_back({current->number & 31, at});
}

void count_requests() {
  std::map<Place, Site> sums;
  for (auto &[key, request] : requests) {
    const Place &place = std::get<0>(key);
    Site &site = sums[place];
    site.requests++;
    site.shared = is_shared(place.array);
    site.shared ? count_wavefronts(site, request) : count_sectors(site, request);
  }
  for (auto &[place, site] : sums) {
    memcpy(site.array, place.array->name, sizeof site.array);
    site.offset = place.caller - program_begin();
    site.verb = place.verb;
    sites.push_back(site);
  }
  requests.clear();
  accesses.clear();
}

void forget_requests() {
  requests.clear();
  accesses.clear();
  sites.clear();
}

size_t take_sites(Site *out, size_t most) {
  const size_t count = std::min(most, sites.size());
  std::copy(sites.end() - count, sites.end(), out);
  sites.resize(sites.size() - count);
  return count;
}
}  // namespace cuemu
