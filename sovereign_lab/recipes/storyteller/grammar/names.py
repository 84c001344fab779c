"""Names: short, old and plain, none of them the first word of a sentence or a thing in a story."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BOYS = _names(
    """
    Adam Al Alec Alfie Andy Anton Archie Arlo Art Axel Barney Ben Benny Bert Bob Boris Bruno Cal
    Carl Charlie Clem Colin Dan Danny Dave David Dennis Dexter Dom Don Eddie Edgar Eli Emil Eric
    Ernie Ethan Ezra Felix Finn Fred Freddy Gabe George Gil Gus Hal Hank Hans Harry Harvey Henry
    Hugo Ian Ike Ivan Jack Jake James Jasper Jed Jem Jerry Jim Joe Joel Johnny Jonas Josh Jude
    Karl Ken Kit Kurt Lars Lenny Leo Levi Liam Linus Lou Luca Lucas Luke Magnus Mario Martin Max
    Mick Mike Milo Moe Morris Nat Ned Neil Nick Nico Noah Norman Olaf Oliver Olle Oscar Oskar
    Otis Otto Owen Pablo Paul Percy Pete Peter Phil Pip Ralph Ravi Rex Rob Roger Roland Ron Rory
    Rudy Rufus Sam Sammy Saul Sid Simon Stan Steve Sven Ted Teddy Theo Thomas Tim Timmy Toby
    Todd Tom Tommy Tony Uri Victor Vince Walter Wes Wilf Willy Zack Zeke
    """
)
GIRLS = _names(
    """
    Abby Ada Alice Alma Amy Ana Anna Annie Asha Astrid Ava Bea Becky Bella Bess Beth Betty
    Britta Carla Carol Cass Cathy Celia Clara Cleo Cora Dana Della Dina Dolly Dora Dot Edie Edna
    Effie Ella Elsa Elsie Emily Emma Erin Etta Eva Eve Evie Fanny Fay Flora Freya Frida Gerda
    Gina Greta Gwen Hannah Hanna Hatty Heidi Helen Helga Hettie Ida Ines Inga Irene Iris Isa
    Jane Jenny Jess Jill Joan Josie Judy Julia June Kate Katie Kiki Kim Kitty Lara Laura Lea
    Lena Lila Lily Lina Linda Lisa Liz Lola Lotta Lottie Lucy Lulu Luna Mabel Maggie Mara Maria
    Marta Martha Mary Matilda Maud Maya Meg Mia Milly Mina Minna Mira Molly Mona Nadia Nan Nancy
    Nell Nelly Nia Nina Nora Olga Olive Olivia Paula Peggy Penny Pia Polly Rita Rosa Rosie Ruby
    Ruth Sally Sara Selma Sonja Sophie Susie Sylvie Tanya Tess Tilda Tilly Tina Toni Trudy
    Ursula Vera Vicky Wanda Wilma Willa Winnie Yara Zara Zelda Zoe
    """
)
ALL = frozenset(BOYS + GIRLS)
