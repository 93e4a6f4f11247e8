/* image.c: linked into the shared object with Objective-C code: hands its metadata to the runtime. */
struct image {
    char *bounds[8];
};
void objc_load_image(const struct image *image);

#define BOUND(name, section, end)                                                                  \
    extern char name[] __asm__("__" end "_" section) __attribute__((weak, visibility("hidden")))

BOUND(first_selector, "objc_selrefs", "start");
BOUND(end_selector, "objc_selrefs", "stop");
BOUND(first_class, "objc_classlist", "start");
BOUND(end_class, "objc_classlist", "stop");
BOUND(first_category, "objc_catlist", "start");
BOUND(end_category, "objc_catlist", "stop");
BOUND(first_protocol, "objc_protolist", "start");
BOUND(end_protocol, "objc_protolist", "stop");

__attribute__((constructor(102))) static void load(void)
{
    const struct image image = {{first_selector, end_selector, first_class, end_class, first_category,
                                 end_category, first_protocol, end_protocol}};
    objc_load_image(&image);
}
