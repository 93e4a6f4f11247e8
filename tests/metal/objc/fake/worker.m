/* worker.m: a thread that runs blocks in order, and events that order workers. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "fake.h"

/* One for everything: the fake is about order, not speed. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static struct timespec after(double seconds)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    uint64_t nanoseconds = (uint64_t)end.tv_nsec + (uint64_t)(seconds * 1e9);
    end.tv_sec += (time_t)(nanoseconds / 1000000000u);
    end.tv_nsec = (long)(nanoseconds % 1000000000u);
    return end;
}

@implementation FakeEvent {
    uint64_t current;
}
- (void)signal:(uint64_t)value
{
    pthread_mutex_lock(&mutex);
    if (value > current)
        current = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}
- (bool)waitFor:(uint64_t)value until:(struct timespec)end on:(FakeWorker *)worker
{
    pthread_mutex_lock(&mutex);
    int error = 0;
    while (current < value && !error && !(worker && [worker stops]))
        error = pthread_cond_timedwait(&changed, &mutex, &end);
    bool reached = current >= value;
    pthread_mutex_unlock(&mutex);
    return reached;
}
- (bool)waitFor:(uint64_t)value on:(FakeWorker *)worker
{
    return [self waitFor:value until:after(2) on:worker];
}
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds
{
    return [self waitFor:value until:after(1e-3 * (double)milliseconds) on:nil];
}
@end

#define MAX_WAITING 256

@implementation FakeWorker {
    pthread_t thread;
    void (^waiting[MAX_WAITING])(FakeWorker *);
    int first, count;
    bool stopped;
}
/* The thread holds no reference of its own: the owner waits for it with finish. */
static void *run_worker(void *self)
{
    [(__bridge FakeWorker *)self run];
    return NULL;
}
- (instancetype)init
{
    self = [super init];
    pthread_create(&thread, NULL, run_worker, (__bridge void *)self);
    return self;
}
- (void)run
{
    pthread_mutex_lock(&mutex);
    while (!stopped || count) {
        if (!count) {
            pthread_cond_wait(&changed, &mutex);
            continue;
        }
        @autoreleasepool {
            void (^work)(FakeWorker *) = waiting[first];
            waiting[first] = nil;
            first = (first + 1) % MAX_WAITING;
            count--;
            pthread_mutex_unlock(&mutex);
            __unsafe_unretained FakeWorker *worker = self;
            work(worker);
        }
        pthread_mutex_lock(&mutex);
    }
    pthread_mutex_unlock(&mutex);
}
- (void)add:(void (^)(FakeWorker *))work
{
    pthread_mutex_lock(&mutex);
    if (count == MAX_WAITING)
        fake_stop("%d command buffers wait", MAX_WAITING);
    waiting[(first + count++) % MAX_WAITING] = work;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}
- (bool)stops
{
    return stopped;
}
- (void)finish
{
    pthread_mutex_lock(&mutex);
    stopped = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
}
@end
